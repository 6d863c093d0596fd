"""A session's seat in a group of devices, as the session knows it."""

from typing import NamedTuple, Protocol

from shared.execution.step_in_flight import Outgoing
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Begun(NamedTuple):
    """The point at which a member begins."""

    life: pb.GroupLife
    """The life of its group."""
    step: int


class Seat(Protocol):
    """The place of one member's session in its group. Used on the event loop."""

    def give(self, one: Outgoing) -> None:
        """Give the gradient of a block, which the session's worker has from its device."""

    async def take(self, wanted: pb.GroupBeginning, step: int) -> Begun:
        """Begin with the weights and at the step that the group says; `step` is that one, where another trainer has said it.

        No link is up. Raises IsthmusError if this member may not begin.
        """

    async def leave(self, last_step: int) -> None:
        """Take part in no step after this one, which is still to be done. Raises IsthmusError if that cannot be."""

    async def position(self) -> pb.GroupPosition:
        """Tell where the group is here. Raises StorageError."""

    def vacate(self) -> None:
        """Note that the session has ended."""
