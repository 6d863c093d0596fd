"""A session's seat in a group of devices, as the session knows it."""

from typing import Protocol

from shared.execution.step_in_flight import Outgoing


class Seat(Protocol):
    """The place of one member's session in its group. Used on the event loop."""

    def give(self, one: Outgoing) -> None:
        """Give the gradient of a block, which the session's worker has from its device."""

    async def take(self) -> None:
        """Begin with the weights and at the step that the group says. A seat that is taken stays as it is.

        Raises IsthmusError if this member may not begin.
        """

    def vacate(self) -> None:
        """Note that the session has ended."""
