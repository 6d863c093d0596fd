"""A session's seat in a group of devices, as the session knows it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shared.execution.step_in_flight import Parcel
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Begun(NamedTuple):
    """The point at which a member begins."""

    life: pb.GroupLife
    """The life of its group."""
    step: int
    joins: bool = False
    """True if it has not begun, and has to join first: the group can wait for it from this step on."""
    awaited: Sequence[int] = ()
    """Ranks of others for which the group waits now, and which are away."""


class Seat(Protocol):
    """The place of one member's session in its group. Used on the event loop."""

    def give(self, one: Parcel) -> None:
        """Give the gradient of a block, which the session's worker has from its device."""

    async def take(self, wanted: pb.GroupBeginning, step: int) -> Begun:
        """Begin with the weights and at the step that the group says; `step` is that one, where another trainer has said it.

        No link is up. Raises IsthmusError if this member may not begin.
        """

    async def leave(self, last_step: int) -> None:
        """Take part in no step after this one, which is still to be done. Raises IsthmusError if that cannot be."""

    async def join(self, life: int, first_step: int) -> None:
        """Take part in all steps of a life from this one on. Raises IsthmusError if that cannot be."""

    async def reach(self, life: int, step: int) -> None:
        """Wait until the group is at a step of a life. Raises StatusError where it is not in some seconds."""

    async def position(self) -> pb.GroupPosition:
        """Tell where the group is here. Raises StorageError."""

    async def vacate(self) -> None:
        """Note that the session has ended."""
