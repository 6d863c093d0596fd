"""The members of a group as a trainer keeps them on its disk: who goes on, and who has all that the group has made."""

from collections.abc import Iterable

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, Members
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import Merging
from cloud_trainer.groups.refusals import RankOwnedError
from shared.errors import ConfigError, StorageError

_log = structlog.get_logger(__name__)


class MemberRecord:
    """The record of one group. Used on the event loop, one call at a time."""

    def __init__(self, config: GroupConfig, store: GroupStore) -> None:
        self._config = config
        self._store = store
        self._kept: Members | None = None
        """Members as this process has written them last."""
        self._finished: set[int] = set()
        """Ranks that have all that the group has made."""
        self._owners: dict[int, str] = {}
        """Subjects to whom ranks belong, by rank: of those that have begun and not left."""

    async def stored_agreement(self) -> Agreement | None:
        """Return the agreement of the training whose checkpoints are here; of one whose results all have, forget everything.

        None where there is none. Raises StorageError.
        """
        stored = await self._store.newest()
        kept = await self._store.members(stored)
        if kept is not None and kept.have_finished:
            await self._store.forget()  # a process before this one was killed meanwhile
            return None
        if kept is not None:
            self._owners = {rank: subject for rank, subject in kept.owners.items() if rank in kept.staying}
        if stored is None:
            return None
        self._finished = set() if kept is None else set(kept.finished)
        return stored.agreement

    async def to_go_on(self) -> dict[int, int]:
        """Return the members with whom the stored training goes on, with their first steps. Raises IsthmusError."""
        kept = await self._store.members(await self._store.newest())
        ranks = self._config.ranks
        if kept is not None and any(rank not in ranks for rank in kept.staying):
            raise ConfigError(
                f"group {self._config.name!r} is trained by the ranks {list(kept.staying)}, and its ranks are 0 to "
                f"{ranks[-1]} at this trainer; its operator has to give it these back, or to remove its checkpoints"
            )
        return dict.fromkeys(range(self._config.size), 0) if kept is None else kept.staying

    async def keep(self, merging: Merging) -> None:
        """Write the members, if that has changed. Raises StorageError."""
        self._owners = {rank: subject for rank, subject in self._owners.items() if rank in merging.ranks}
        members = Members(dict(merging.staying), tuple(sorted(self._finished)), dict(self._owners))
        if self._kept != members:
            await self._store.keep_members(members)
            self._kept = members

    async def try_keep(self, merging: Merging) -> None:
        """Write the members, if that has changed; where it fails, the next checkpoint brings another try."""
        try:
            await self.keep(merging)
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
            await self.keep(merging)
        elif (kept := await self._store.members(await self._store.newest())) is not None:
            await self._store.keep_members(kept._replace(owners=self._owners))
        return True

    async def begin(self, rank: int, subject: str, merging: Merging) -> None:
        """Note that a member has begun, whose rank it is from now on, and lacks what the group makes."""
        self._finished.discard(rank)
        self._owners[rank] = subject
        await self.try_keep(merging)

    async def finish(self, rank: int, merging: Merging) -> bool:
        """Note that a member has all that the group has made; tells whether now all have."""
        self._finished.add(rank)
        await self.try_keep(merging)
        return self._finished.issuperset(merging.ranks)

    def unfinished(self, ranks: Iterable[int]) -> list[int]:
        """List those of some ranks that lack what the group makes."""
        return [rank for rank in ranks if rank not in self._finished]

    def begin_life(self, life: Life, steps: int) -> None:
        """Note that the group begins a life: where a step of all is still to be done, everybody lacks the result."""
        if life.first_step < steps:
            self._finished.clear()

    def end_training(self) -> None:
        """Know of nobody any more: the next training has members of its own."""
        self._finished.clear()
        self._owners.clear()

    async def forget(self) -> None:
        """Remove all of a training that has ended. Raises StorageError."""
        await self._store.forget()
        self._kept = None
