"""Store of what one trainer keeps of a group: checkpoints between two steps, what it trains, and who its members are."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import structlog
from torch import Tensor

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import Merging, Snapshot
from cloud_trainer.groups.refusals import RankOwnedError
from shared.bounds import MOST_RATE_DROPS
from shared.checkpoint import CheckpointName, CheckpointStore, DamagedCheckpointError, Files, seal, unseal
from shared.concurrency.threads import WorkerThread
from shared.errors import ConfigError, StorageError
from shared.training.block_state import BlockTensors
from shared.training.held_state import states_in
from shared.training.state_file import serialize

_log = structlog.get_logger(__name__)
_MEMBERS = "members.json"
_MEMBERS_FACT, _DROPS_FACT = "members", "rate_drops"
_KEPT = 3
"""Checkpoints that stay: the newest may be damaged, and another trainer may not have it when this one takes the next."""


class StoredMembers(NamedTuple):
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
    members: StoredMembers | None
    """Members when it was taken; None for a checkpoint of a version that did not say so."""
    rate_drops: int
    """Times that the learning rate was lowered before it."""


class GroupStore:
    """The folder of one group, and its members as they are to be kept there. Used on the event loop, one call at a time.

    A thread of its own reads and writes.
    """

    def __init__(self, config: GroupConfig, files: Files | None, disk: WorkerThread) -> None:
        """files: the folder; None stores nothing."""
        self._config = config
        self._files = files
        self._store = None if files is None else CheckpointStore(files, _KEPT)
        self._disk = disk
        self._saving: asyncio.Task[None] | None = None
        self._life: tuple[int, CheckpointName | None] = (0, None)
        """The number of the present life, and the checkpoint with which it has begun."""
        self._kept: StoredMembers | None = None
        """Members as this process has written them last."""
        self._finished: set[int] = set()
        """Ranks that have all that the group has made."""
        self._owners: dict[int, str] = {}
        """Subjects to whom ranks belong, by rank: of those that have begun and not left."""
        self._has_ended = False
        """True while the checkpoints of a training that has ended are not removed."""

    async def begin_saving(
        self, name: CheckpointName, agreement: Agreement, copied: Snapshot, staying: Mapping[int, int]
    ) -> None:
        """Begin to write a checkpoint, once the one before is written. A failure is logged. staying: see `StoredMembers`."""
        await self.written()
        if self._store is not None:
            facts = agreement.document | {_MEMBERS_FACT: list(staying.items()), _DROPS_FACT: copied.rate_drops}
            self._saving = asyncio.create_task(self._write(self._store, name, facts, copied.state))

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

    def begin_life(self, life: Life, steps: int) -> None:
        """Note that the group begins a life of so many steps, once all before it is `written`.

        What is newer than its origin goes once it has a checkpoint of its own. Where a step of all is still to be done,
        everybody lacks the result.
        """
        self._life = life.number, life.origin
        if life.first_step < steps:
            self._finished.clear()

    async def write_members(self, members: StoredMembers) -> None:
        """Keep the members whatever checkpoint the group goes back to. Raises StorageError."""
        if self._files is not None:
            await self._disk.run(self._files.write, _MEMBERS, seal(members.document))

    async def members(self, newest: StoredGroup | None) -> StoredMembers | None:
        """Return what was kept by `write_members`; None where nothing is. Raises StorageError.

        newest: the checkpoint that tells who the members were where that is damaged or missing.
        """
        data = None if self._files is None else await self._disk.run(self._files.read, _MEMBERS)
        document = None if data is None else unseal(data)
        found = None if document is None else StoredMembers.read(document)
        if found is not None or (newest is None and data is None):
            return found
        recovered = None if newest is None else newest.members
        _log.warning(
            "members of a group are damaged or missing; those of its newest checkpoint count",
            group=self._config.name,
            members=None if recovered is None else list(recovered.staying),
        )
        return recovered

    async def stored_agreement(self) -> Agreement | None:
        """Return the agreement of the training whose checkpoints are here; of one whose results all have, forget everything.

        None where there is none. Raises StorageError.
        """
        await self.forget_ended()
        stored = await self.newest()
        kept = await self.members(stored)
        if kept is not None and kept.have_finished:
            await self.forget()  # a process before this one was killed meanwhile
            return None
        if kept is not None:
            self._owners = {rank: subject for rank, subject in kept.owners.items() if rank in kept.staying}
        if stored is None:
            return None
        self._finished = set() if kept is None else set(kept.finished)
        return stored.agreement

    async def to_go_on(self) -> dict[int, int]:
        """Return the members with whom the stored training goes on, with their first steps. Raises IsthmusError."""
        kept = await self.members(await self.newest())
        ranks = self._config.ranks
        if kept is not None and any(rank not in ranks for rank in kept.staying):
            raise ConfigError(
                f"group {self._config.name!r} is trained by the ranks {list(kept.staying)}, and its ranks are 0 to "
                f"{ranks[-1]} at this trainer; its operator has to give it these back, or to remove its checkpoints"
            )
        return dict.fromkeys(range(self._config.size), 0) if kept is None else kept.staying

    async def keep_members(self, merging: Merging) -> None:
        """Write the members of the present life, if that has changed. Raises StorageError."""
        self._owners = {rank: subject for rank, subject in self._owners.items() if rank in merging.ranks}
        members = StoredMembers(dict(merging.staying), tuple(sorted(self._finished)), dict(self._owners))
        if self._kept != members:
            await self.write_members(members)
            self._kept = members

    async def try_to_keep_members(self, merging: Merging) -> None:
        """Write the members, if that has changed; where it fails, the next checkpoint brings another try."""
        try:
            await self.keep_members(merging)
        except StorageError as failure:
            _log.warning("members of a group not written", group=self._config.name, reason=str(failure))

    def owner(self, rank: int) -> str | None:
        """Return the subject to which a rank belongs; None if it is nobody's."""
        return self._owners.get(rank)

    def check_owner(self, rank: int, subject: str, merging: Merging | None) -> None:
        """Refuse a rank that belongs to another subject. Raises RankOwnedError. merging: None before the group has begun."""
        owner = self.owner(rank) if merging is None or rank in merging.ranks else None
        if owner not in (None, subject):
            raise RankOwnedError(
                f"rank {rank} of group {self._config.name!r} belongs to another subject, which has begun with it and may come "
                f"back; the trainer's operator can free it (cloud-trainer free {self._config.name} {rank})",
            )

    async def free(self, rank: int, merging: Merging | None) -> bool:
        """Have a rank belong to nobody; tells whether it belonged to any. Raises StorageError."""
        if merging is None:
            await self.stored_agreement()
        if self._owners.pop(rank, None) is None:
            return False
        if merging is not None:
            await self.keep_members(merging)
        elif (kept := await self.members(await self.newest())) is not None:
            await self.write_members(kept._replace(owners=self._owners))
        return True

    async def note_begun(self, rank: int, subject: str, merging: Merging) -> None:
        """Note that a member has begun, whose rank it is from now on, and lacks what the group makes."""
        self._finished.discard(rank)
        self._owners[rank] = subject
        await self.try_to_keep_members(merging)

    async def note_finished(self, rank: int, merging: Merging) -> bool:
        """Note that a member has all that the group has made; tells whether now all have."""
        self._finished.add(rank)
        await self.try_to_keep_members(merging)
        return self._finished.issuperset(merging.ranks)

    def unfinished(self, ranks: Iterable[int]) -> list[int]:
        """List those of some ranks that lack what the group makes."""
        return [rank for rank in ranks if rank not in self._finished]

    def forget_members(self) -> None:
        """Know of nobody any more: the next training has members of its own."""
        self._finished.clear()
        self._owners.clear()

    def end_training(self) -> None:
        """Forget all of a training that every member has the result of. `forget_ended` removes what is on disk."""
        self.forget_members()
        self._has_ended = True

    async def forget_ended(self) -> None:
        """Remove the checkpoints of a training that has ended, so that no other begins with them. Raises StorageError."""
        if self._has_ended:
            await self.forget()
            self._has_ended = False

    async def forget(self) -> None:
        """Remove all of a training; the members last, which tell that it has ended. Raises StorageError."""
        await self.written()
        if self._store is not None:
            await self._disk.run(self._remove_all, self._store)
        if self._files is not None:
            await self._disk.run(self._files.remove, _MEMBERS)
        self._kept = None

    async def _write(
        self, store: CheckpointStore, name: CheckpointName, facts: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        try:
            await self._disk.run(self._save, store, name, facts, state)
            _log.info("checkpoint of a group", group=self._config.name, step=name.step)
        except StorageError as failure:
            _log.warning("checkpoint of a group not written", group=self._config.name, reason=str(failure))
        except Exception:  # nobody reads the result of this task
            _log.exception("checkpoint of a group not written", group=self._config.name)

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
            members = None if staying is None else StoredMembers.read({"staying": staying})
            drops = found.facts.get(_DROPS_FACT, 0)
            if type(drops) is not int or not 0 <= drops <= MOST_RATE_DROPS:
                raise StorageError(f"a checkpoint of a group says that the rate fell {drops!r} times")
            return StoredGroup(name, Agreement.read(found.facts), states_in(found.data), members, drops)
        except DamagedCheckpointError as damage:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(damage))
            store.remove(name)
        return None

    @staticmethod
    def _remove_all(store: CheckpointStore) -> None:
        for name in store.names():
            store.remove(name)
