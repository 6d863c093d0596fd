"""Files that several checkpoints have in common: each has what changed since the one before it, and all together are the whole.

A checkpoint's manifest lists them, the oldest first, by name, length and checksum. Knows nothing of the meaning of the bytes.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Self

import xxhash

MAX_LINKS = 100
"""The most links of a chain."""
_FILE = re.compile(r"checkpoint-\d{1,19}-\d{1,19}\.link\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class Link:
    """One such file. It bears the name of the checkpoint with which it was written, and is never changed."""

    file: str
    size_bytes: int
    xxh3_128: str

    @classmethod
    def of(cls, file: str, data: bytes) -> Self:
        """Name a file with these bytes."""
        return cls(file, len(data), xxhash.xxh3_128_hexdigest(data))

    def is_of(self, data: bytes) -> bool:
        """Tell whether these are the bytes."""
        return Link.of(self.file, data) == self


@dataclass(frozen=True, slots=True)
class Chain:
    """The links of a checkpoint that is to be written."""

    links: tuple[Link, ...] = ()
    """Links that earlier checkpoints have written, the oldest first."""
    more: bytes = b""
    """The bytes of the newest one, which this checkpoint writes; empty where it needs none."""


NO_CHAIN = Chain()


def described(links: tuple[Link, ...]) -> list[dict[str, Any]]:
    """Return links as JSON."""
    return [asdict(link) for link in links]


def links_in(described: object) -> tuple[Link, ...] | None:
    """Read links from JSON; None for anything that `described` would not return."""
    if not isinstance(described, list) or len(described) > MAX_LINKS:
        return None
    links = [_link(each) for each in described]
    return None if None in links else tuple(link for link in links if link is not None)


def _link(described: object) -> Link | None:
    match described:
        case {"file": str(file), "size_bytes": int(count), "xxh3_128": str(digest)} if is_link(file):
            return Link(file, count, digest)
    return None


def link_file(stem: str) -> str:
    """Return the name of the link that is written with the checkpoint of such files."""
    return f"{stem}.link.safetensors"


def is_link(file: str) -> bool:
    """Tell whether a file is a link by its name."""
    return _FILE.fullmatch(file) is not None
