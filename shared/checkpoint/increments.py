"""Files that several checkpoints have in common: each has what changed since the one before it, and all together are the whole.

A checkpoint's manifest lists them, the oldest first, by name, length and checksum. Knows nothing of the meaning of the bytes.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Self

import xxhash

MAX_INCREMENTS = 100
"""The most increments of a checkpoint."""
_FILE = re.compile(r"checkpoint-\d{1,19}-\d{1,19}\.increment\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class Increment:
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
        return Increment.of(self.file, data) == self


@dataclass(frozen=True, slots=True)
class Increments:
    """The increments of a checkpoint that is to be written."""

    earlier: tuple[Increment, ...] = ()
    """Increments that earlier checkpoints have written, the oldest first."""
    more: bytes = b""
    """The bytes of the newest one, which this checkpoint writes; empty where it needs none."""


NO_INCREMENTS = Increments()


def described(increments: tuple[Increment, ...]) -> list[dict[str, Any]]:
    """Return increments as JSON."""
    return [asdict(increment) for increment in increments]


def increments_in(described: object) -> tuple[Increment, ...] | None:
    """Read increments from JSON; None for anything that `described` would not return."""
    if not isinstance(described, list) or len(described) > MAX_INCREMENTS:
        return None
    increments = [_increment(each) for each in described]
    return None if None in increments else tuple(increment for increment in increments if increment is not None)


def _increment(described: object) -> Increment | None:
    match described:
        case {"file": str(file), "size_bytes": int(count), "xxh3_128": str(digest)} if is_increment(file):
            return Increment(file, count, digest)
    return None


def increment_file(stem: str) -> str:
    """Return the name of the increment that is written with the checkpoint of such files."""
    return f"{stem}.increment.safetensors"


def is_increment(file: str) -> bool:
    """Tell whether a file is an increment by its name."""
    return _FILE.fullmatch(file) is not None
