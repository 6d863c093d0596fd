"""The choice of what one end of a link sends next: of the channels by which something waits, the most urgent."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from shared.errors import OutOfTurnError
from shared.execution.step_in_flight import Parcel
from shared.placement import Bundle, Cargo, Exchange, bundles, urgency
from shared.runtime.channel import Channel

MOST_WAITING_BYTES = 4096
"""Larger labels go at once, while their feature is computed: on a slow link they take time of their own."""


class Outbox:
    """All channels that leave by one link, each with its number as its place."""

    def __init__(
        self,
        channels: Sequence[Channel],
        labelled: Channel | None = None,
        most_ahead: int = 0,
        exchange: Exchange | None = None,
        *,
        merged: bool = False,
    ) -> None:
        """labelled: has the feature with which small labels of its step go; None where they go by themselves.

        most_ahead: how many steps the peer may have beyond those that this worker has made, where it begins again; else 0.
        exchange: which loads of shared blocks go together; None where each goes by itself. merged: see `urgency`.
        """
        self.channels = channels
        self._merged = merged
        self._bundles = bundles(exchange, [channel.crossing for channel in channels])
        self._labelled = labelled
        self._most_ahead = most_ahead
        self._ready: list[tuple[tuple[int, int, int], int]] = []
        """Urgency and number of the channels by which something waits, the most urgent first: a link may have thousands of
        channels, and few by which something waits. Slices of one block are equally urgent."""
        self._keeps_first = False
        """True if the peer may need the weights with which a step begins."""
        self._forgotten = 0
        """Everything before this step is forgotten, but for the weights with which it begins."""

    @property
    def waiting(self) -> int:
        """Count the parcels that have not been handed to the link."""
        return sum(channel.waiting for channel in self.channels)

    def keep_first(self, channel: Channel, parcel: Parcel) -> None:
        """Keep a load that the peer has, and lacks if it loses all: the weights with which a placement came into force."""
        self._keeps_first = True
        channel.keep(parcel)

    def put(self, channel: Channel, parcel: Parcel) -> None:
        """One more has to go."""
        if channel.crossing.cargo is Cargo.LABEL and self._labelled is not None:
            assert isinstance(parcel.load, tuple)
            parcel.waits = sum(part.nbytes for part in parcel.load if part is not None) <= MOST_WAITING_BYTES
        channel.keep(parcel)
        if channel.first is None and parcel.step >= channel.stream_step:
            self._look_at(channel, parcel)

    def next(self, begun: int) -> tuple[tuple[Channel, Parcel], ...]:
        """Return the parcels to send next, together, with their channels: the most urgent; labels with their feature.

        begun: step that begins next here. Samples and labels from this step on wait for everything else.
        """
        for channel, parcel in self._waiting(begun) if self._ready else ():
            if (bundle := self._bundles.get(channel.place)) is not None:
                if all(self.channels[number].next_step > parcel.step for number in bundle.after):
                    return self._together(bundle, parcel.step)
                continue
            if not parcel.waits or (labelled := self._labelled) is None:
                return ((channel, parcel),)
            if (feature := labelled.first) is not None and feature.step == parcel.step:
                return (channel, parcel), (labelled, feature)
            if labelled.stream_step > parcel.step:  # A lost stream has brought the feature alone.
                return ((channel, parcel),)
        return ()

    def _waiting(self, begun: int) -> Iterator[tuple[Channel, Parcel]]:
        """The channels by which something waits, with its first parcel, in their order."""
        ahead: list[tuple[Channel, Parcel]] = []
        for _, number in self._ready:
            channel = self.channels[number]
            assert channel.first is not None, "what has a place waits"
            if channel.first.step < begun:
                yield channel, channel.first
            else:
                ahead.append((channel, channel.first))
        yield from ahead

    def _together(self, bundle: Bundle, step: int) -> tuple[tuple[Channel, Parcel], ...]:
        """Return the parcels of a bundle that the peer lacks of a step. A lost stream may have brought some of them."""
        first = ((channel, channel.first) for channel in (self.channels[number] for number in bundle.together))
        return tuple((channel, parcel) for channel, parcel in first if parcel is not None and parcel.step == step)

    def _look_at(self, channel: Channel, parcel: Parcel | None) -> None:
        """Count a channel among those by which something waits, with its first parcel, or among them no more."""
        channel.first = parcel
        before, now = channel.urgency, None
        if parcel is not None:
            now = urgency(channel.crossing, parcel.step, merged=self._merged)
        if before == now:
            return
        channel.urgency = now
        if before is not None:
            del self._ready[bisect_left(self._ready, (before, channel.place))]
        if now is not None:
            insort(self._ready, (now, channel.place))

    def note_sent(self, channel: Channel, step: int) -> None:
        """All of a channel's parcel of a step has been handed to the link."""
        channel.stream_step = step + 1
        self._look_at(channel, channel.first_waiting() if step + 1 < channel.next_step else None)

    def resume(self, awaited: Sequence[tuple[Channel, int]]) -> None:
        """A new stream begins: send by each channel from the step that the peer waits for.

        Raises OutOfTurnError, and changes nothing, for a step that it cannot wait for: it has not come, or was told to be done.
        """
        for channel, step in awaited:
            crossing, next_step = channel.crossing, channel.next_step
            if not next_step < step <= next_step + self._most_ahead and not channel.covers(step):
                first, what = next(iter(channel.parcels), next_step), f"{crossing.cargo} {crossing.index}"
                raise OutOfTurnError(
                    f"{crossing.receiver!r} waits for {what} of step {step}; steps {first} to {next_step} can be sent"
                )
        for channel, step in awaited:
            channel.there = step
            channel.stream_step = min(step, channel.stream_step) if self._most_ahead else step
            self._look_at(channel, channel.first_waiting())

    def forget_before(self, before: int) -> None:
        """The peer has all that belongs to the steps before this one, and needs none of it again."""
        if before <= self._forgotten:
            return
        self._forgotten = before
        for channel in self.channels:
            # The weights that the step before has made are those with which this one begins.
            kept = before - (self._keeps_first and channel.crossing.cargo is Cargo.WEIGHTS)
            channel.forget_before(kept)
            if channel.first is not None and channel.first.step < kept:  # the peer again waits for a tensor that it had
                self._look_at(channel, channel.first_waiting())
