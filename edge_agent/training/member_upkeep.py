"""Members that come and go beside training: trainers that a requested placement needs, and those that no placement names."""

import asyncio

from edge_agent.sessions.admission import admit, release, release_stand_ins
from edge_agent.sessions.membership import MemberStatus
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import CheckpointShared
from edge_agent.training.replica_keeper import appoint_keeper
from edge_agent.training.stopping_trainers import StoppingTrainers
from shared.errors import IsthmusError
from shared.placement import Placement


class MemberUpkeep:
    """The members of one session, kept as its placements need them. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        deployer: Deployer,
        stopping: StoppingTrainers,
        due: asyncio.Event,
        *,
        keeps_checkpoints: bool,
    ) -> None:
        """due: set when a placement needs trainers that are no members yet, or a trainer is to be left."""
        self._session = session
        self._deployer = deployer
        self._stopping = stopping
        self._due = due
        self._keeps_checkpoints = keeps_checkpoints
        self._shared: Placement | None = None
        """Placement of the newest shared checkpoint, if this process knows it."""

    def note_shared(self, event: CheckpointShared) -> None:
        """Note that the run can go back to a newer checkpoint."""
        self._shared = event.placement
        self._due.set()

    async def keep(self) -> None:
        """Keep the members, until this is cancelled: between two joins of the trainers, while links are up."""
        while True:
            self._due.clear()
            await self._stopping.hand_over()
            await release_stand_ins(self._session)
            await self._deployer.prepare()
            await self._tell_those_behind()
            await appoint_keeper(self._session, self._deployer.placement)
            await self._release_others()
            await self._due.wait()

    async def _tell_those_behind(self) -> None:
        """Have trainers without blocks forget those that they had, unless they are released soon."""
        for name in self._deployer.named.intersection(self._session.members.named(MemberStatus.BEHIND)):
            try:
                await admit(self._session, name)
            except IsthmusError as failure:
                self._session.members.miss(name, str(failure))

    async def _release_others(self) -> None:
        """Release the trainers that keep no replicas, and that no placement names to which the run may go: forward, or
        back to a checkpoint."""
        shared = self._shared if self._keeps_checkpoints else self._session.placement
        if shared is None:
            return
        members = self._session.members
        for name in members.keys() - self._deployer.named - set(shared.workers) - {members.keeper}:
            await release(self._session, name)
