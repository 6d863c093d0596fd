"""The checkpoints of one group at one trainer: weights and optimizer of its blocks between two steps, and what it trains."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import structlog
from torch import Tensor

from cloud_trainer.groups.agreement import Agreement
from shared.checkpoint import CheckpointName, CheckpointStore, DamagedCheckpointError, Files, seal, unseal
from shared.concurrency.threads import WorkerThread
from shared.errors import StorageError
from shared.training.block_state import BlockTensors
from shared.training.held_state import states_in
from shared.training.state_file import serialize

_log = structlog.get_logger(__name__)
_MEMBERS = "members.json"
_MEMBERS_FACT = "members"
_KEPT = 3
"""Checkpoints that stay: the newest may be damaged, and another trainer may not have it when this one takes the next."""


class Members(NamedTuple):
    """The members of a group, by rank."""

    staying: dict[int, int]
    """First steps of those that go on if the group goes back to any checkpoint, by rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have all that the group has made."""
    owners: dict[int, str] = {}  # noqa: RUF012 - never written to
    """Subjects whose ranks they are, by rank."""

    @property
    def have_finished(self) -> bool:
        """Tell whether nobody is left that lacks anything of what the group has made."""
        return bool(self.finished) and set(self.finished) >= set(self.staying)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self | None:
        """Read what is stored; None where it is damaged."""
        staying, finished = document.get("staying"), document.get("finished", [])
        owners = document.get("owners", [])
        if not isinstance(staying, list) or not isinstance(finished, list) or not isinstance(owners, list):
            return None
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in (*staying, *owners)):
            return None
        numbers = [*finished, *(number for pair in staying for number in pair), *(rank for rank, _ in owners)]
        are_whole = all(type(number) is int and number >= 0 for number in numbers)
        are_named = all(isinstance(subject, str) for _, subject in owners)
        return cls(dict(staying), tuple(finished), dict(owners)) if are_whole and are_named else None

    @property
    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        pairs = {"staying": list(self.staying.items()), "owners": list(self.owners.items())}
        return pairs | {"finished": list(self.finished)}


class StoredGroup(NamedTuple):
    """A group as a checkpoint has it."""

    name: CheckpointName
    """The life in which it was taken, and the step that comes next."""
    agreement: Agreement
    states: dict[int, BlockTensors]
    members: Members | None
    """Members when it was taken; None for a checkpoint of a version that did not say so."""


class GroupStore:
    """The folder of one group. Used on the event loop; a thread of its own reads and writes."""

    def __init__(self, group: str, files: Files | None, disk: WorkerThread) -> None:
        """files: the folder; None stores nothing."""
        self._group = group
        self._files = files
        self._store = None if files is None else CheckpointStore(files, _KEPT)
        self._disk = disk
        self._saving: asyncio.Task[None] | None = None
        self._life: tuple[int, CheckpointName | None] = (0, None)
        """The number of the present life, and the checkpoint with which it has begun."""

    async def begin_saving(
        self, name: CheckpointName, agreement: Agreement, state: dict[str, Tensor], staying: Mapping[int, int]
    ) -> None:
        """Begin to write a checkpoint, once the one before is written. A failure is logged. staying: see `Members`."""
        await self.written()
        if self._store is not None:
            facts = agreement.document | {_MEMBERS_FACT: list(staying.items())}
            self._saving = asyncio.create_task(self._write(self._store, name, facts, state))

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

    async def begin_life(self, number: int, origin: CheckpointName | None) -> None:
        """Begin a life with a checkpoint, or with none. What is newer than that goes once the life has one of its own."""
        await self.written()
        self._life = number, origin

    async def keep_members(self, members: Members) -> None:
        """Keep the members whatever checkpoint the group goes back to. Raises StorageError."""
        if self._files is not None:
            await self._disk.run(self._files.write, _MEMBERS, seal(members.document))

    async def members(self, newest: StoredGroup | None) -> Members | None:
        """Return what was kept by `keep_members`; None where nothing is. Raises StorageError.

        newest: the checkpoint that tells who the members were where that is damaged or missing.
        """
        data = None if self._files is None else await self._disk.run(self._files.read, _MEMBERS)
        document = None if data is None else unseal(data)
        found = None if document is None else Members.read(document)
        if found is not None or (newest is None and data is None):
            return found
        recovered = None if newest is None else newest.members
        _log.warning(
            "members of a group are damaged or missing; those of its newest checkpoint count",
            group=self._group,
            members=None if recovered is None else list(recovered.staying),
        )
        return recovered

    async def forget(self) -> None:
        """Remove all of a training; the members last, which tell that it has ended. Raises StorageError."""
        await self.written()
        if self._store is not None:
            await self._disk.run(self._remove_all, self._store)
        if self._files is not None:
            await self._disk.run(self._files.remove, _MEMBERS)

    async def _write(
        self, store: CheckpointStore, name: CheckpointName, facts: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        try:
            await self._disk.run(self._save, store, name, facts, state)
            _log.info("checkpoint of a group", group=self._group, step=name.step)
        except StorageError as failure:
            _log.warning("checkpoint of a group not written", group=self._group, reason=str(failure))
        except Exception:  # nobody reads the result of this task
            _log.exception("checkpoint of a group not written", group=self._group)

    def _save(
        self, store: CheckpointStore, name: CheckpointName, facts: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        store.save(name, facts, serialize(state))
        number, origin = self._life
        for other in store.names():
            if other.lineage < number and (origin is None or other > origin):
                store.remove(other)  # of a life before, which has come to another state
        store.prune()

    @staticmethod
    def _load(store: CheckpointStore, name: CheckpointName) -> StoredGroup | None:
        try:
            found = store.load(name)
            staying = found.facts.get(_MEMBERS_FACT)
            members = None if staying is None else Members.read({"staying": staying})
            return StoredGroup(name, Agreement.read(found.facts), states_in(found.data), members)
        except DamagedCheckpointError as damage:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(damage))
            store.remove(name)
        return None

    @staticmethod
    def _remove_all(store: CheckpointStore) -> None:
        for name in store.names():
            store.remove(name)
