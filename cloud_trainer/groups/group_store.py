"""The checkpoints of one group at one trainer: weights and optimizer of its blocks between two steps, and what it trains."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import structlog
from torch import Tensor

from cloud_trainer.groups.agreement import Agreement
from shared.checkpoint import CheckpointName, CheckpointStore, DamagedCheckpointError, Files, seal, unseal
from shared.concurrency.threads import WorkerThread
from shared.errors import StorageError
from shared.training.block_state import BlockTensors
from shared.training.held_state import states_in, to_bytes

_log = structlog.get_logger(__name__)
_MEMBERS = "members.json"
_KEPT = 3
"""Checkpoints that stay: the newest may be damaged, and another trainer may not have it when this one takes the next."""


class StoredGroup(NamedTuple):
    """A group as a checkpoint has it."""

    name: CheckpointName
    """The life in which it was taken, and the step that comes next."""
    agreement: Agreement
    states: dict[int, BlockTensors]


class GroupStore:
    """The folder of one group. Used on the event loop; a thread of its own reads and writes."""

    def __init__(self, group: str, files: Files | None, disk: WorkerThread) -> None:
        """files: the folder; None stores nothing."""
        self._group = group
        self._files = files
        self._store = None if files is None else CheckpointStore(files, _KEPT)
        self._disk = disk
        self._saving: asyncio.Task[None] | None = None

    async def begin_saving(self, name: CheckpointName, agreement: Agreement, state: dict[str, Tensor]) -> None:
        """Begin to write a checkpoint, once the one before is written. A failure is logged."""
        await self.written()
        if self._store is not None:
            self._saving = asyncio.create_task(self._write(self._store, name, agreement, state))

    async def written(self) -> None:
        """Wait until no checkpoint is being written. Writing goes on even where its waiter is cancelled."""
        if self._saving is not None:
            await asyncio.wait({self._saving})

    async def names(self) -> list[CheckpointName]:
        """List the checkpoints that may be whole, the newest first. Raises StorageError."""
        return [] if self._store is None else await self._disk.run(self._store.names)

    async def load(self, name: CheckpointName) -> StoredGroup | None:
        """Read a checkpoint; one that is damaged is removed, and None returned. Raises StorageError."""
        return None if self._store is None else await self._disk.run(self._load, self._store, name)

    async def newest(self) -> StoredGroup | None:
        """Read the newest checkpoint that is whole; None if there is none. Raises StorageError."""
        for name in await self.names():
            if (found := await self.load(name)) is not None:
                return found
        return None

    async def go_back(self, origin: CheckpointName | None) -> None:
        """Remove all checkpoints after one to which the group goes back; None removes all. Raises StorageError."""
        await self.written()
        if self._store is not None:
            await self._disk.run(self._remove_after, self._store, origin)

    async def keep_members(self, members: Mapping[int, int]) -> None:
        """Keep who goes on if the group goes back to any checkpoint: by rank, its first step. A failure is logged."""
        if self._files is None:
            return
        try:
            await self._disk.run(self._files.write, _MEMBERS, seal({"members": list(members.items())}))
        except StorageError as failure:
            _log.warning("members of a group not written", group=self._group, reason=str(failure))

    async def members(self) -> dict[int, int] | None:
        """Return what was kept by `keep_members`; None where nothing is. Raises StorageError."""
        data = None if self._files is None else await self._disk.run(self._files.read, _MEMBERS)
        found = None if data is None else unseal(data)
        return None if found is None else {int(rank): int(first) for rank, first in found["members"]}

    async def forget(self) -> None:
        """Remove all of a training. Raises StorageError."""
        await self.go_back(None)
        if self._files is not None:
            await self._disk.run(self._files.remove, _MEMBERS)

    async def _write(
        self, store: CheckpointStore, name: CheckpointName, agreement: Agreement, state: dict[str, Tensor]
    ) -> None:
        try:
            await self._disk.run(self._save, store, name, agreement, state)
            _log.info("checkpoint of a group", group=self._group, step=name.step)
        except StorageError as failure:
            _log.warning("checkpoint of a group not written", group=self._group, reason=str(failure))
        except Exception:  # nobody reads the result of this task
            _log.exception("checkpoint of a group not written", group=self._group)

    @staticmethod
    def _save(store: CheckpointStore, name: CheckpointName, agreement: Agreement, state: dict[str, Tensor]) -> None:
        store.save(name, agreement.document, to_bytes(state))
        store.prune()

    @staticmethod
    def _load(store: CheckpointStore, name: CheckpointName) -> StoredGroup | None:
        try:
            found = store.load(name)
            return StoredGroup(name, Agreement.read(found.facts), states_in(found.data))
        except DamagedCheckpointError as damage:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(damage))
            store.remove(name)
        return None

    @staticmethod
    def _remove_after(store: CheckpointStore, origin: CheckpointName | None) -> None:
        for name in store.names():
            if origin is None or name > origin:
                store.remove(name)
