"""Checkpoints by name: saved whole, verified before they are believed, pruned.

A checkpoint is two files: `checkpoint-LINEAGE-STEP.safetensors`, and `checkpoint-LINEAGE-STEP.json`, its manifest, which is
written after it. The manifest holds the length and checksum of the first file, the owner's facts, and a checksum of its own.
Knows nothing of what the bytes mean.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
import xxhash

from shared.checkpoint.documents import seal, unseal
from shared.checkpoint.files import Files
from shared.errors import StorageError

_log = structlog.get_logger(__name__)

_MANIFEST = re.compile(r"checkpoint-(\d{1,19})-(\d{1,19})\.json", re.ASCII)
FORMAT = 1
"""The version of the manifest's layout."""
MAX_NAMED = 64
"""The most checkpoints that an edge may name when it attaches."""


class CheckpointName(NamedTuple):
    """Names one state of the whole network; a later one is greater."""

    lineage: int
    """The session term in which both sides last went back to a checkpoint, which begins a new lineage."""
    step: int
    """The step that comes next."""

    def __str__(self) -> str:
        return f"{self.lineage}-{self.step}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it was saved. facts: what the owner remembers with it, as JSON. data: the bytes of its file."""

    name: CheckpointName
    facts: dict[str, Any]
    data: bytes


class DamagedCheckpointError(StorageError):
    """A checkpoint that is not whole."""


class CheckpointStore:
    """The checkpoints of one side of one session. Its methods block; a thread of their own calls them."""

    def __init__(self, files: Files, keep: int) -> None:
        """keep: how many checkpoints `prune` leaves, at least 1."""
        self.files = files
        self._keep = keep

    def save(self, name: CheckpointName, facts: dict[str, Any], data: bytes) -> None:
        """Write a checkpoint. Raises StorageError; then there is no checkpoint of that name, or a whole one."""
        manifest = {
            "format": FORMAT,
            "lineage": name.lineage,
            "step": name.step,
            "bytes": len(data),
            "xxh3_128": xxhash.xxh3_128_hexdigest(data),
            "facts": facts,
        }
        self.files.remove(_manifest(name))  # or an old manifest would stand beside new bytes for a moment
        self.files.write(_file(name), data)
        self.files.write(_manifest(name), seal(manifest))

    def names(self) -> list[CheckpointName]:
        """The checkpoints that have a manifest, the newest first. They may be damaged."""
        found = [_MANIFEST.fullmatch(name) for name in self.files.names()]
        return sorted((CheckpointName(int(match[1]), int(match[2])) for match in found if match), reverse=True)

    def load(self, name: CheckpointName) -> Checkpoint:
        """Read a checkpoint and verify it.

        Raises DamagedCheckpointError when it is not whole or not there, StorageError when it cannot be read.
        """
        manifest = _read_manifest(self.files.read(_manifest(name)), name)
        data = self.files.read(_file(name))
        if data is None:
            raise DamagedCheckpointError(f"checkpoint {name}: its file is missing")
        if len(data) != manifest["bytes"] or xxhash.xxh3_128_hexdigest(data) != manifest["xxh3_128"]:
            raise DamagedCheckpointError(f"checkpoint {name}: its file is not what was written")
        return Checkpoint(name, manifest["facts"], data)

    def is_whole(self, name: CheckpointName) -> bool:
        """Whether a checkpoint can be loaded; where it cannot, a warning says why."""
        try:
            self.load(name)
        except StorageError as failure:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
            return False
        return True

    def remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint, if it is there. Raises StorageError."""
        self.files.remove(_manifest(name))
        self.files.remove(_file(name))

    def bytes_after(self, name: CheckpointName, data_bytes: int, pinned: Collection[CheckpointName]) -> int:
        """The bytes that the whole folder will hold once a checkpoint of `data_bytes` is saved and older ones are pruned.

        The new checkpoint's manifest is not counted. Raises StorageError.
        """
        sizes, names = self.files.sizes(), {*self.names(), name}
        for gone in {name, *(names - self._retained(names, pinned))}:
            sizes.pop(_manifest(gone), None)
            sizes.pop(_file(gone), None)
        return data_bytes + sum(sizes.values())

    def prune(self, pinned: Collection[CheckpointName] = ()) -> None:
        """Remove all checkpoints but the newest ones and those that are `pinned`, and all files without a manifest."""
        retained = self._retained(self.names(), pinned)
        for name in self.names():
            if name not in retained:
                self.remove(name)
        files = {_file(name) for name in self.names()}
        for file in self.files.names():
            if file.startswith("checkpoint-") and file.endswith(".safetensors") and file not in files:
                self.files.remove(file)

    def _retained(self, names: Iterable[CheckpointName], pinned: Collection[CheckpointName]) -> set[CheckpointName]:
        return {*sorted(names, reverse=True)[: self._keep], *pinned}


def _manifest(name: CheckpointName) -> str:
    return f"checkpoint-{name}.json"


def _file(name: CheckpointName) -> str:
    return f"checkpoint-{name}.safetensors"


def _read_manifest(sealed: bytes | None, name: CheckpointName) -> dict[str, Any]:
    """The manifest. Raises DamagedCheckpointError for bytes that were not written for this name."""
    if sealed is None:
        raise DamagedCheckpointError(f"checkpoint {name}: its manifest is missing")
    manifest = unseal(sealed)
    if (
        manifest is None
        or (manifest.get("format"), manifest.get("lineage"), manifest.get("step")) != (FORMAT, *name)
        or not {"bytes", "xxh3_128"} <= manifest.keys()
        or not isinstance(manifest.get("facts"), dict)
    ):
        raise DamagedCheckpointError(f"checkpoint {name}: its manifest is not what was written")
    return manifest
