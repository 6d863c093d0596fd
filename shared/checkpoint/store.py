"""Checkpoints by name: saved whole, verified before they are believed, pruned.

Of a checkpoint a side has its own part, and the replicas that it keeps of single blocks of other parts. Each is two files:
`checkpoint-LINEAGE-STEP.safetensors`, or `checkpoint-LINEAGE-STEP.block-BLOCK.safetensors` for a replica, and beside it
its manifest, `.json`, which is written after it. The manifest holds the length and checksum of the first file, the
owner's facts, and a checksum of its own. A part may also have `increments`,
`checkpoint-LINEAGE-STEP.increment.safetensors`, each written before the first manifest that lists it and removed with the last.
Knows nothing of the meaning of the bytes.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
import xxhash

from shared.checkpoint.documents import seal, unseal
from shared.checkpoint.folders import Files
from shared.checkpoint.increments import (
    NO_INCREMENTS,
    Increment,
    Increments,
    described,
    increment_file,
    increments_in,
    is_increment,
)
from shared.errors import StorageError

_log = structlog.get_logger(__name__)

_MANIFEST = re.compile(r"checkpoint-(\d{1,19})-(\d{1,19})(?:\.block-(\d{1,9}))?\.json", re.ASCII)
FORMAT = 2
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
    """A part or a replica as it was saved. facts: the owner's data for it, as JSON. data: the bytes of its file."""

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
        self._warned_of: set[CheckpointName] = set()

    def save(
        self, name: CheckpointName, facts: dict[str, Any], data: bytes, increments: Increments = NO_INCREMENTS
    ) -> tuple[Increment, ...]:
        """Write this side's part, and return all its increments.

        Raises StorageError; then there is no part of that name, or a whole one.
        """
        return self._save(_StoredFile(name), facts, data, increments)

    def save_replica(self, name: CheckpointName, block: int, data: bytes | memoryview) -> None:
        """Write a block of another side's part. Raises StorageError; then it is not here, or whole."""
        self._save(_StoredFile(name, block), {}, data, NO_INCREMENTS)

    def _save(
        self, file: "_StoredFile", facts: dict[str, Any], data: bytes | memoryview, increments: Increments
    ) -> tuple[Increment, ...]:
        listed = increments.earlier
        if increments.more:
            listed = (*listed, Increment.of(file.increment, increments.more))
        manifest = {
            "format": FORMAT,
            **file.identity,
            "bytes": len(data),
            "xxh3_128": xxhash.xxh3_128_hexdigest(data),
            "increments": described(listed),
            "facts": facts,
        }
        self.files.remove(file.manifest)  # or an old manifest would stand beside new bytes for a moment
        try:
            if increments.more:
                self.files.write(file.increment, increments.more)
            self.files.write(file.data, data)
            self.files.write(file.manifest, seal(manifest))
        except StorageError:
            with suppress(StorageError):  # a full disk wants its room back
                self.files.remove(file.data)
                if increments.more:
                    self.files.remove(file.increment)
            raise
        return listed

    def names(self) -> list[CheckpointName]:
        """The checkpoints of which this side's part has a manifest, the newest first. They may be damaged."""
        return sorted((file.name for file in self._listed() if file.block is None), reverse=True)

    def replicas(self) -> dict[CheckpointName, list[int]]:
        """The blocks of which a replica has a manifest, by checkpoint, in order. They may be damaged."""
        found: dict[CheckpointName, list[int]] = {}
        for file in sorted(file for file in self._listed() if file.block is not None):
            assert file.block is not None
            found.setdefault(file.name, []).append(file.block)
        return found

    def load(self, name: CheckpointName) -> Checkpoint:
        """Read this side's part and verify it.

        Raises DamagedCheckpointError when it is not whole or not there, StorageError when it cannot be read.
        """
        return self._load(_StoredFile(name))

    def facts(self, name: CheckpointName) -> dict[str, Any]:
        """Read the facts of this side's part, and not its data. Raises DamagedCheckpointError, StorageError."""
        return self._manifest(_StoredFile(name)).facts

    def load_increments(self, name: CheckpointName) -> Iterator[bytes]:
        """Read the increments of this side's part, as `read_increments` does."""
        yield from self.read_increments(self._manifest(_StoredFile(name)).increments)

    def read_increments(self, increments: Sequence[Increment]) -> Iterator[bytes]:
        """Read increments, the newest first, and verify each before it is yielded.

        Raises DamagedCheckpointError, before any memory is taken for an increment of another length, and StorageError.
        """
        sizes = self.files.sizes()
        for increment in reversed(increments):
            data = self.files.read(increment.file) if sizes.get(increment.file) == increment.size_bytes else None
            if data is None or not increment.is_of(data):
                raise DamagedCheckpointError(
                    f"{increment.file}, an increment of checkpoints, is missing, or not what was written"
                )
            yield data

    def load_replica(self, name: CheckpointName, block: int) -> Checkpoint:
        """The same for a block of another side's part."""
        return self._load(_StoredFile(name, block))

    def _load(self, file: "_StoredFile") -> Checkpoint:
        manifest = self._manifest(file)
        data = self.files.read(file.data)
        if data is None:
            raise DamagedCheckpointError(f"{file}: its file is missing")
        if len(data) != manifest.bytes or xxhash.xxh3_128_hexdigest(data) != manifest.xxh3_128:
            raise DamagedCheckpointError(f"{file}: its file is not what was written")
        return Checkpoint(file.name, manifest.facts, data)

    def _manifest(self, file: "_StoredFile") -> "_Manifest":
        return _read_manifest(self.files.read(file.manifest), file)

    def is_whole(self, name: CheckpointName) -> bool:
        """Tell whether this side's part can be loaded; where it cannot, a warning says why, once."""
        try:
            self.load(name)
            for _increment in self.load_increments(name):
                pass
        except StorageError as failure:
            if name in self._warned_of:
                return False
            self._warned_of.add(name)
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
            return False
        return True

    def remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint with its replicas, if it is there. Its increments stay until `prune`. Raises StorageError."""
        for file in {_StoredFile(name), *(file for file in self._listed() if file.name == name)}:
            self.files.remove(file.manifest)
            self.files.remove(file.data)

    def bytes_after(
        self,
        name: CheckpointName,
        data_bytes: int,
        pinned: Collection[CheckpointName],
        increments: Iterable[Increment] = (),
    ) -> int:
        """The bytes that the whole folder will hold once a part is saved and older ones are pruned.

        data_bytes: of the part, with its own increment. increments: those that it shares with earlier parts. The new
        manifest is not counted. Raises StorageError.
        """
        sizes, listed = self.files.sizes(), self._listed()
        retained = self._retained({name, *(file.name for file in listed)}, pinned)
        for gone in (_StoredFile(name), *(file for file in listed if file.name not in retained)):
            sizes.pop(gone.manifest, None)
            sizes.pop(gone.data, None)
        needed = {increment.file for increment in increments} | self._increments_of(retained.difference({name}))
        return data_bytes + sum(size for file, size in sizes.items() if file in needed or not is_increment(file))

    def bytes_with_replica(self, name: CheckpointName, block: int, data_bytes: int) -> int:
        """The same once a replica of `data_bytes` is saved, which prunes nothing. Raises StorageError."""
        sizes = self.files.sizes()
        sizes.pop(_StoredFile(name, block).data, None)
        return data_bytes + sum(sizes.values())

    def prune(self, pinned: Collection[CheckpointName] = ()) -> None:
        """Remove all checkpoints but the newest ones and those that are `pinned`, and all files without a manifest."""
        listed = self._listed()
        retained = self._retained({file.name for file in listed}, pinned)
        for name in {file.name for file in listed} - retained:
            self.remove(name)
        files = {file.data for file in self._listed()} | self._increments_of(self.names())
        for found in self.files.names():
            if found.startswith("checkpoint-") and found.endswith(".safetensors") and found not in files:
                self.files.remove(found)

    def _increments_of(self, names: Iterable[CheckpointName]) -> set[str]:
        """List the increments of parts. One that is damaged or not here has none."""
        found: set[str] = set()
        for name in names:
            with suppress(DamagedCheckpointError):
                found.update(increment.file for increment in self._manifest(_StoredFile(name)).increments)
        return found

    def _retained(self, names: Iterable[CheckpointName], pinned: Collection[CheckpointName]) -> set[CheckpointName]:
        return {*sorted(names, reverse=True)[: self._keep], *pinned}

    def _listed(self) -> list["_StoredFile"]:
        """All that has a manifest."""
        found = [_MANIFEST.fullmatch(name) for name in self.files.names()]
        return [
            _StoredFile(CheckpointName(int(match[1]), int(match[2])), None if match[3] is None else int(match[3]))
            for match in found
            if match is not None
        ]


class _StoredFile(NamedTuple):
    """A side's part of a checkpoint, or its replica of one block."""

    name: CheckpointName
    block: int | None = None

    @property
    def data(self) -> str:
        """The name of the file that holds the state."""
        return f"{self._stem}.safetensors"

    @property
    def increment(self) -> str:
        """The name of the increment that is written with it."""
        return increment_file(self._stem)

    @property
    def manifest(self) -> str:
        """The name of its manifest."""
        return f"{self._stem}.json"

    @property
    def identity(self) -> dict[str, int]:
        """The keys by which the manifest names its file."""
        of_block = {} if self.block is None else {"block": self.block}
        return {"lineage": self.name.lineage, "step": self.name.step, **of_block}

    @property
    def _stem(self) -> str:
        return f"checkpoint-{self.name}" if self.block is None else f"checkpoint-{self.name}.block-{self.block}"

    def __str__(self) -> str:
        return f"checkpoint {self.name}" if self.block is None else f"block {self.block} of checkpoint {self.name}"


class _Manifest(NamedTuple):
    """Content of a manifest."""

    facts: dict[str, Any]
    bytes: Any
    xxh3_128: Any
    increments: tuple[Increment, ...]


def _read_manifest(sealed: bytes | None, file: _StoredFile) -> _Manifest:
    """Read a manifest. Raises DamagedCheckpointError for bytes that were not written for this file."""
    if sealed is None:
        raise DamagedCheckpointError(f"{file}: its manifest is missing")
    manifest = unseal(sealed)
    if (
        manifest is None
        or manifest.get("format") != FORMAT
        or {key: manifest.get(key) for key in ("lineage", "step", "block") if key in manifest} != file.identity
        or not {"bytes", "xxh3_128"} <= manifest.keys()
        or not isinstance(manifest.get("facts"), dict)
        or (increments := increments_in(manifest.get("increments"))) is None
    ):
        raise DamagedCheckpointError(f"{file}: its manifest is not what was written")
    return _Manifest(manifest["facts"], manifest["bytes"], manifest["xxh3_128"], increments)
