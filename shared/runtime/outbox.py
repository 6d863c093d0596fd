"""The items that one end of a link has to send, in their order, each kept until the peer needs it no more."""

from bisect import bisect_left
from dataclasses import dataclass

from shared.codec import Encoded
from shared.errors import ProtocolError
from shared.execution.step_scheduler import Load, Outgoing
from shared.placement import Cargo, Crossing
from shared.runtime.resend_buffer import ResendBuffer

_FIRST = (Cargo.ERROR_GRADIENT, Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS, Cargo.LABEL, Cargo.FEATURE)
"""Order of cargo when several items wait: first the items that end a step of other workers, and labels before their feature."""


MOST_WAITING_BYTES = 4096
"""Larger labels go at once, while their feature is computed: on a slow link they take time of their own."""


@dataclass(slots=True)
class Item:
    """A load on its way: encoded once, because a codec may draw random numbers."""

    step: int
    samples: int
    crossing: Crossing
    load: Load
    encoded: dict[int, Encoded | None] | None = None
    waits: bool = False
    """True if it is sent with the feature of its step, and not before."""


class Outbox:
    """The items of all crossings that leave by one link."""

    def __init__(self, crossings: tuple[Crossing, ...], first_step: int, labelled: Crossing | None = None) -> None:
        """labelled: the feature with which small labels of its step go; None where they go by themselves."""
        self._labelled = labelled
        ordered = sorted(crossings, key=lambda one: (_FIRST.index(one.cargo), one.index))
        self._items: dict[Crossing, ResendBuffer[Item]] = {crossing: ResendBuffer() for crossing in ordered}
        self._ordered = tuple(ordered)
        self._ranks = {crossing: rank for rank, crossing in enumerate(ordered)}
        self._ready: list[int] = []
        """The ranks of the crossings of which something waits, rising: a link may have thousands, and few that wait."""
        self._to_send = dict.fromkeys(ordered, first_step)
        self._next_step = dict.fromkeys(ordered, first_step)
        """Step that is put in next, by crossing."""
        self._forgotten = first_step
        """Everything before this step is forgotten."""

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """All that leaves by this link in a step."""
        return tuple(self._items)

    @property
    def waiting(self) -> int:
        """Number of items that have not been handed to the link."""
        return sum(self._next_step[crossing] - first for crossing, first in self._to_send.items())

    def put(self, outgoing: Outgoing) -> None:
        """One more has to go."""
        item = Item(outgoing.step, outgoing.samples, outgoing.crossing, outgoing.load)
        if outgoing.crossing.cargo is Cargo.LABEL and self._labelled is not None:
            assert isinstance(outgoing.load, tuple)
            item.waits = sum(part.nbytes for part in outgoing.load if part is not None) <= MOST_WAITING_BYTES
        self._items[outgoing.crossing].keep(outgoing.step, item)
        self._next_step[outgoing.crossing] = outgoing.step + 1
        self._look_at(outgoing.crossing)

    def next(self) -> tuple[Item, ...]:
        """Return the items to send next, together: of those that wait, the first kind in order; labels with their feature."""
        for rank in self._ready:
            if (item := self._waiting(self._ordered[rank])) is None:
                continue  # The peer again waits for a tensor that it had, and that is forgotten.
            if not item.waits or self._labelled is None:
                return (item,)
            feature = self._waiting(self._labelled)
            if feature is not None and feature.step == item.step:
                return item, feature
            if self._to_send[self._labelled] > item.step:  # a lost stream has brought the feature and not the labels
                return (item,)
        return ()

    def _waiting(self, crossing: Crossing) -> Item | None:
        return self._items[crossing].first_from(self._to_send[crossing])

    def _look_at(self, crossing: Crossing) -> None:
        """Count a crossing among those of which something waits, or among them no more."""
        rank = self._ranks[crossing]
        at = bisect_left(self._ready, rank)
        was_ready, is_ready = self._ready[at : at + 1] == [rank], self._waiting(crossing) is not None
        if is_ready and not was_ready:
            self._ready.insert(at, rank)
        elif was_ready and not is_ready:
            del self._ready[at]

    def note_sent(self, item: Item) -> None:
        """All of an item has been handed to the link."""
        self._to_send[item.crossing] = item.step + 1
        self._look_at(item.crossing)

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
        self._look_at(crossing)

    def forget_before(self, before: int) -> None:
        """The peer has all that belongs to the steps before this one."""
        if before <= self._forgotten:
            return
        self._forgotten = before
        for items in self._items.values():
            items.forget_before(before)
