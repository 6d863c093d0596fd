"""The place of one member's session in a group."""

from typing import TYPE_CHECKING

from cloud_trainer.sessions.seat import Begun
from cloud_trainer.sessions.session import Session
from shared.execution.step_in_flight import Parcel
from shared.wire.isthmus.v1 import trainer_pb2 as pb

if TYPE_CHECKING:
    from cloud_trainer.groups.trained_group import TrainedGroup


class MemberSeat:
    """The place of one member's session; see `Seat`."""

    def __init__(self, group: "TrainedGroup", rank: int, subject: str) -> None:
        """subject: of the caller that opens the session."""
        self._group = group
        self.rank = rank
        self.subject = subject
        self.session: Session | None = None
        """The session, once it is built."""
        self.is_taken = False
        """True once the session has begun in the group."""
        self.begun_seconds = 0.0
        """Time at which it has, by time.monotonic."""
        self.has_trained = False
        """True once the session has had weights of the group, so that it has no first ones any more."""
        self.may_join = False
        """True once the group has said that the member has to join, until it begins."""

    def give(self, one: Parcel) -> None:
        """Give as `Seat` says."""
        self._group.give(self, one)

    async def occupy(self, session: Session) -> int:
        """Belong to a session that was built for it; see `TrainedGroup.occupy`."""
        return await self._group.occupy(self, session)

    async def take(self, wanted: pb.GroupBeginning, step: int) -> Begun:
        """Begin as `Seat` says."""
        return await self._group.begin(self, wanted, step)

    async def leave(self, last_step: int) -> None:
        """Leave as `Seat` says."""
        await self._group.leave(self, last_step)

    async def join(self, life: int, first_step: int) -> None:
        """Join as `Seat` says."""
        await self._group.join(self, life, first_step)

    async def reach(self, life: int, step: int) -> None:
        """Wait as `Seat` says."""
        await self._group.reach(life, step)

    async def position(self) -> pb.GroupPosition:
        """Tell as `Seat` says."""
        return await self._group.position()

    async def vacate(self) -> None:
        """End as `Seat` says."""
        await self._group.vacate(self)
