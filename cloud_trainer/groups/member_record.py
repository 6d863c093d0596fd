"""The members of a group as a trainer keeps them on its disk: who goes on, and who has all that the group has made."""

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, Members
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import Merging
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

    async def stored_agreement(self) -> Agreement | None:
        """Return the agreement of the training whose checkpoints are here; of one whose results all have, forget everything.

        None where there is none. Raises StorageError.
        """
        stored = await self._store.newest()
        kept = await self._store.members(stored)
        if kept is not None and kept.have_finished:
            await self._store.forget()  # a process before this one was killed meanwhile
            return None
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
        members = Members(dict(merging.staying), tuple(sorted(self._finished)))
        if self._kept != members:
            await self._store.keep_members(members)
            self._kept = members

    async def try_keep(self, merging: Merging) -> None:
        """Write the members, if that has changed; where it fails, the next checkpoint brings another try."""
        try:
            await self.keep(merging)
        except StorageError as failure:
            _log.warning("members of a group not written", group=self._config.name, reason=str(failure))

    async def begin(self, rank: int, merging: Merging) -> None:
        """Note that a member has begun, and lacks what the group makes."""
        self._finished.discard(rank)
        await self.try_keep(merging)

    async def finish(self, rank: int, merging: Merging) -> bool:
        """Note that a member has all that the group has made; tells whether now all have."""
        self._finished.add(rank)
        await self.try_keep(merging)
        return self._finished.issuperset(merging.ranks)

    def begin_life(self, life: Life, steps: int) -> None:
        """Note that the group begins a life: where a step of all is still to be done, everybody lacks the result."""
        if life.first_step < steps:
            self._finished.clear()

    def end_training(self) -> None:
        """Know of nobody any more: the next training has members of its own."""
        self._finished.clear()

    async def forget(self) -> None:
        """Remove all of a training that has ended. Raises StorageError."""
        await self._store.forget()
        self._kept = None
