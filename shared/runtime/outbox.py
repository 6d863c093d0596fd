"""What one end of a link has to send, in the order in which it goes, kept until the peer needs it no more."""

from dataclasses import dataclass

from shared.codec import Encoded
from shared.errors import ProtocolError
from shared.execution.steps import Load, Outgoing
from shared.placement import Cargo, Crossing
from shared.runtime.resend_buffer import ResendBuffer

_FIRST = (Cargo.ERROR_GRADIENT, Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS, Cargo.LABEL, Cargo.FEATURE)
"""What goes first where several things wait: what ends a step that others wait for, and labels before their feature."""


@dataclass(slots=True)
class Item:
    """A load on its way: encoded once, because a codec may draw random numbers."""

    step: int
    samples: int
    crossing: Crossing
    load: Load
    encoded: dict[int, Encoded] | None = None


class Outbox:
    """The items of all crossings that leave by one link."""

    def __init__(self, crossings: tuple[Crossing, ...], first_step: int) -> None:
        ordered = sorted(crossings, key=lambda one: (_FIRST.index(one.cargo), one.index))
        self._items: dict[Crossing, ResendBuffer[Item]] = {crossing: ResendBuffer() for crossing in ordered}
        self._to_send = dict.fromkeys(ordered, first_step)
        self._next_step = dict.fromkeys(ordered, first_step)
        """Of each crossing, the step that is put in next."""

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """All that leaves by this link in a step."""
        return tuple(self._items)

    @property
    def waiting(self) -> int:
        """How many items have not been handed to the link."""
        return sum(self._next_step[crossing] - first for crossing, first in self._to_send.items())

    def put(self, outgoing: Outgoing) -> None:
        """One more has to go."""
        item = Item(outgoing.step, outgoing.samples, outgoing.crossing, outgoing.load)
        self._items[outgoing.crossing].keep(outgoing.step, item)
        self._next_step[outgoing.crossing] = outgoing.step + 1

    def next(self) -> Item | None:
        """What goes next: of what is there, the kind that goes first."""
        for crossing, items in self._items.items():
            if (waiting := items.first_from(self._to_send[crossing])) is not None:
                return waiting
        return None

    def note_sent(self, item: Item) -> None:
        """All of an item has been handed to the link."""
        self._to_send[item.crossing] = item.step + 1

    def resume(self, crossing: Crossing, step: int) -> None:
        """A new stream begins: send of this crossing from the step that the peer waits for.

        Raises ProtocolError for a step that it cannot wait for: it has not come, or was told to be done.
        """
        next_step = self._next_step[crossing]
        if not self._items[crossing].covers(step, next_step):
            first, what = next(iter(self._items[crossing].steps), next_step), f"{crossing.cargo} {crossing.index}"
            raise ProtocolError(
                f"{crossing.receiver!r} waits for {what} of step {step}; steps {first} to {next_step} can be sent"
            )
        self._to_send[crossing] = step

    def forget_before(self, before: int) -> None:
        """The peer has all that belongs to the steps before this one."""
        for items in self._items.values():
            items.forget_before(before)
