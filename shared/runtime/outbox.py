"""The items that one end of a link has to send, in their order, each kept until the peer needs it no more."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from shared.errors import OutOfTurnError
from shared.execution.step_in_flight import Parcel
from shared.placement import Bundle, Cargo, Crossing, urgency
from shared.runtime.resend_buffer import ResendBuffer

MOST_WAITING_BYTES = 4096
"""Larger labels go at once, while their feature is computed: on a slow link they take time of their own."""


_Place = tuple[tuple[int, int, int], int]
"""The urgency of a crossing's first item, and the number of the crossing: slices of one block are equally urgent."""


class _Leaving(ResendBuffer[Parcel]):
    """The items of one crossing."""

    def __init__(self, crossing: Crossing, number: int, first_step: int) -> None:
        super().__init__(first_step)
        self.crossing = crossing
        self.number = number
        self.first: Parcel | None = None
        """The first item that waits."""
        self.place: _Place | None = None
        """Its place among those of which something waits."""
        self.there: int | None = None
        """First step that the peer lacks, where this worker makes again what it may have."""


class Outbox:
    """The items of all crossings that leave by one link."""

    def __init__(
        self,
        crossings: tuple[Crossing, ...],
        first_step: int,
        labelled: Crossing | None = None,
        most_ahead: int = 0,
        bundles: Mapping[Crossing, Bundle] | None = None,
        *,
        merged: bool = False,
    ) -> None:
        """labelled: the feature with which small labels of its step go; None where they go by themselves.

        most_ahead: how many steps the peer may have beyond those that this worker has made, where it begins again; else 0.
        bundles: by crossing, those that go together with it; left out, each goes by itself. merged: see `urgency`.
        """
        self.crossings = crossings
        """All that leaves by this link in a step."""
        self._merged = merged
        self._bundles = bundles or {}
        self._labelled = labelled
        self._most_ahead = most_ahead
        self._leaving = [_Leaving(crossing, number, first_step) for number, crossing in enumerate(crossings)]
        self._of = dict(zip(crossings, self._leaving, strict=True))
        self._ready: list[_Place] = []
        """The places of those of which something waits, the most urgent first: a link may have thousands, and few that wait."""
        self._keeps_first = False
        """True if the peer may need the weights with which a step begins."""
        self._forgotten = first_step
        """Everything before this step is forgotten, but for the weights with which it begins."""

    @property
    def waiting(self) -> int:
        """Count the items that have not been handed to the link."""
        return sum(one.waiting for one in self._leaving)

    def keep_first(self, parcel: Parcel) -> None:
        """Keep a load that the peer has, and lacks if it loses all: the weights with which a placement came into force."""
        self._keeps_first = True
        self._of[parcel.crossing].keep(parcel.step, parcel)

    def put(self, parcel: Parcel) -> None:
        """One more has to go."""
        if parcel.crossing.cargo is Cargo.LABEL and self._labelled is not None:
            assert isinstance(parcel.load, tuple)
            parcel.waits = sum(part.nbytes for part in parcel.load if part is not None) <= MOST_WAITING_BYTES
        leaving = self._of[parcel.crossing]
        leaving.keep(parcel.step, parcel)
        self._look_at(leaving)

    def next(self, begun: int) -> tuple[Parcel, ...]:
        """Return the items to send next, together: of those that wait, the most urgent; labels with their feature.

        begun: step that begins next here. Samples and labels from this step on wait for everything else.
        """
        for item in self._waiting(begun):
            if (bundle := self._bundles.get(item.crossing)) is not None:
                if all(self._of[one].next_step > item.step for one in bundle.after):
                    return self._together(bundle, item.step)
                continue
            if not item.waits or self._labelled is None:
                return (item,)
            labelled = self._of[self._labelled]
            feature = labelled.first
            if feature is not None and feature.step == item.step:
                return item, feature
            if labelled.sent_step > item.step:  # A lost stream has brought the feature alone.
                return (item,)
        return ()

    def _waiting(self, begun: int) -> Iterator[Parcel]:
        """The first item of each crossing of which something waits, in their order."""
        ahead: list[Parcel] = []
        for _, number in self._ready:
            item = self._leaving[number].first
            assert item is not None, "what has a place waits"
            if item.step < begun:
                yield item
            else:
                ahead.append(item)
        yield from ahead

    def _together(self, bundle: Bundle, step: int) -> tuple[Parcel, ...]:
        """Return the items of a bundle that the peer lacks of a step. A lost stream may have brought some of them."""
        first = (self._of[one].first for one in bundle.together)
        return tuple(item for item in first if item is not None and item.step == step)

    def _look_at(self, leaving: _Leaving) -> None:
        """Count a crossing among those of which something waits, with its first item, or among them no more."""
        leaving.first = item = leaving.first_unsent()
        before, now = leaving.place, None
        if item is not None:
            now = urgency(leaving.crossing, item.step, merged=self._merged), leaving.number
        if before == now:
            return
        leaving.place = now
        if before is not None:
            del self._ready[bisect_left(self._ready, before)]
        if now is not None:
            insort(self._ready, now)

    def is_there(self, item: Parcel) -> bool:
        """Tell whether the peer has had this item of the life of this worker that is over."""
        if not self._most_ahead:
            return False
        there = self._of[item.crossing].there
        return there is not None and item.step < there

    def note_sent(self, item: Parcel) -> None:
        """All of an item has been handed to the link."""
        leaving = self._of[item.crossing]
        leaving.sent_step = item.step + 1
        self._look_at(leaving)

    def resume(self, awaited: Mapping[Crossing, int]) -> None:
        """A new stream begins: send of each crossing from the step that the peer waits for.

        Raises OutOfTurnError, and changes nothing, for a step that it cannot wait for: it has not come, or was told to be done.
        """
        for crossing, step in awaited.items():
            leaving = self._of[crossing]
            is_ahead = leaving.next_step < step <= leaving.next_step + self._most_ahead
            if not is_ahead and not leaving.covers(step):
                first, what = next(iter(leaving.steps), leaving.next_step), f"{crossing.cargo} {crossing.index}"
                raise OutOfTurnError(
                    f"{crossing.receiver!r} waits for {what} of step {step}; steps {first} to {leaving.next_step} can be sent"
                )
        for crossing, step in awaited.items():
            leaving = self._of[crossing]
            if self._most_ahead:
                leaving.there, step = step, min(step, leaving.sent_step)
            leaving.sent_step = step
            self._look_at(leaving)

    def forget_before(self, before: int) -> None:
        """The peer has all that belongs to the steps before this one, and needs none of it again."""
        if before <= self._forgotten:
            return
        self._forgotten = before
        for one in self._leaving:
            # The weights that the step before has made are those with which this one begins.
            kept = before - (one.crossing.cargo is Cargo.WEIGHTS and self._keeps_first)
            one.forget_before(kept)
            if one.first is not None and one.first.step < kept:  # the peer again waits for a tensor that it had
                self._look_at(one)
