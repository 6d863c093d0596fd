"""The checkpoints of one group: the weights and the optimizer of all blocks between two steps, and what the group trains."""

from typing import NamedTuple

import structlog
from torch import Tensor

from cloud_trainer.groups.agreement import Agreement
from shared.checkpoint import CheckpointName, CheckpointStore, Files
from shared.concurrency.threads import WorkerThread
from shared.errors import StorageError
from shared.training.block_state import BlockTensors
from shared.training.held_state import states_in, to_bytes

_log = structlog.get_logger(__name__)
_KEPT = 2
"""Checkpoints that stay, because the newest may turn out to be damaged."""


class StoredGroup(NamedTuple):
    """A group as a checkpoint has it."""

    step: int
    """The step that comes next."""
    agreement: Agreement
    states: dict[int, BlockTensors]


class GroupStore:
    """The folder of one group. Used on the event loop; a thread of its own reads and writes."""

    def __init__(self, files: Files | None, disk: WorkerThread) -> None:
        """files: the folder; None stores nothing."""
        self._store = None if files is None else CheckpointStore(files, _KEPT)
        self._disk = disk

    async def save(self, step: int, agreement: Agreement, state: dict[str, Tensor]) -> None:
        """Write a checkpoint of the group before a step. Raises StorageError."""
        if self._store is not None:
            await self._disk.run(self._save, self._store, step, agreement, state)

    async def newest(self) -> StoredGroup | None:
        """Read the newest checkpoint that is whole; None if there is none. Raises StorageError."""
        return None if self._store is None else await self._disk.run(self._newest, self._store)

    async def forget(self) -> None:
        """Remove all checkpoints of the group. Raises StorageError."""
        if self._store is not None:
            await self._disk.run(self._forget, self._store)

    @staticmethod
    def _save(store: CheckpointStore, step: int, agreement: Agreement, state: dict[str, Tensor]) -> None:
        store.save(CheckpointName(0, step), agreement.document, to_bytes(state))
        store.prune()

    @staticmethod
    def _newest(store: CheckpointStore) -> StoredGroup | None:
        for name in store.names():
            try:
                found = store.load(name)
                return StoredGroup(name.step, Agreement.read(found.facts), states_in(found.data))
            except StorageError as damage:
                _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(damage))
        return None

    @staticmethod
    def _forget(store: CheckpointStore) -> None:
        for name in store.names():
            store.remove(name)
