"""Loads that wait for a link which is lost again and again: the peer gets each of them once, and none waits for ever."""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo, Crossing, Exchange, Rows, urgency
from shared.runtime.outbox import Outbox
from tests.support.channels import channels
from tests.support.examples import examples

WHOLE, MOST_UNDER_WAY, SLICES = Rows(0, 4), 6, 10
NEVER = 1 << 40
"""A step that begins after all others."""
CARGOES = [Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS]


def sliced(cargo: Cargo, block: int = 0, count: int = SLICES) -> tuple[Crossing, ...]:
    """Return the crossings of a block's slices."""
    return tuple(Crossing("edge", "near", cargo, block, WHOLE, (number,)) for number in range(count))


class Link:
    """A box, the peer at the other end of its link, and what is on its way there."""

    def __init__(self, box: Outbox, begun: int = NEVER) -> None:
        """begun: step that begins next where the box is."""
        self.box = box
        self._begun = begun
        self._channels = {channel.crossing: channel for channel in box.channels}
        self.made, self._sent, self._come = (dict.fromkeys(self._channels, 0) for _ in range(3))
        """By crossing: first step that is not put into the box, that is not sent on this stream, and that has not come."""
        self._under_way: deque[Parcel] = deque()

    @property
    def settled(self) -> int:
        """First step of which something has not come."""
        return min(self._come.values())

    def put(self, choice: int) -> None:
        """Make the next load of a crossing, of a step that the peer may be sent."""
        may = [one for one, step in self.made.items() if step < self.settled + MOST_UNDER_WAY]
        if may:
            self.make(may[choice % len(may)])

    def put_step(self, most: int) -> None:
        """Make the next load of so many crossings that are the furthest behind."""
        for one in sorted(self.made, key=self.made.__getitem__)[:most]:
            if self.made[one] < self.settled + MOST_UNDER_WAY:
                self.make(one)

    def make(self, crossing: Crossing) -> None:
        """Make the next load of a crossing."""
        parcel = Parcel(self.made[crossing], 4, crossing, (torch.zeros(1, dtype=torch.uint8),))
        self.box.put(self._channels[crossing], parcel)
        self.made[crossing] += 1

    def send(self, most: int) -> None:
        """Hand so many groups of loads to the link."""
        while most > 0 and (together := self.box.next(self._begun)):
            for channel, item in together:
                self.check_sent(item)
                self._under_way.append(item)
                self._sent[item.crossing] = item.step + 1
                self.box.note_sent(channel, item.step)
            most -= 1

    def check_sent(self, item: Parcel) -> None:
        """See to it that a load that leaves is the next one of its crossing on this stream."""
        assert item.step == self._sent[item.crossing]

    @property
    def waiting(self) -> dict[Crossing, int]:
        """The first step that waits of each crossing of which anything does."""
        return {one: step for one, step in self._sent.items() if step < self.made[one]}

    def arrive(self, most: int) -> None:
        """Have so many loads arrive."""
        for _ in range(min(most, len(self._under_way))):
            item = self._under_way.popleft()
            assert item.step == self._come[item.crossing], "each comes once, one step after the other"
            self._come[item.crossing] += 1

    def lose(self, most: int) -> None:
        """Lose the stream once so many more have arrived, and begin another one."""
        self.arrive(most)
        self._under_way.clear()
        self._sent = dict(self._come)
        self.resume(self._come)

    def resume(self, come: Mapping[Crossing, int]) -> None:
        """Begin a stream to a peer that lacks each crossing from a step on."""
        self.box.resume([(self._channels[crossing], step) for crossing, step in come.items()])

    def settle(self, _most: int) -> None:
        """Tell the box which steps the peer needs nothing of any more."""
        self.box.forget_before(self.settled)

    def drain(self) -> None:
        """Have all crossings get as far as the furthest, and all of it arrive."""
        for crossing, step in self.made.items():
            for _ in range(max(self.made.values()) - step):
                self.make(crossing)
        self.send(NEVER)
        assert self.box.waiting == 0
        self.arrive(NEVER)
        assert self._come == self.made


class OrderedLink(Link):
    """A link whose loads go one by one: of those that wait, the most urgent first."""

    def check_sent(self, item: Parcel) -> None:
        super().check_sent(item)
        order = {one: (step >= self._begun, urgency(one, step)) for one, step in self.waiting.items()}
        assert order[item.crossing] == min(order.values())


@pytest.mark.parametrize("cargo", CARGOES)
@pytest.mark.parametrize("lacking", [3, 7, SLICES])
def test_slices_that_a_lost_stream_has_not_brought_are_sent_on_the_next(cargo, lacking):
    slices = sliced(cargo)
    link = Link(Outbox(channels(slices, 4)))
    box = link.box
    link.made = dict.fromkeys(slices, 4)
    for one in slices:
        link.make(one)
    while together := box.next(NEVER):
        for channel, item in together:
            box.note_sent(channel, item.step)
    for one in slices:
        link.make(one)
    link.resume({one: 4 if number >= SLICES - lacking else 5 for number, one in enumerate(slices)})
    sent = []
    while together := box.next(NEVER):
        for channel, item in together:
            sent.append((item.step, channel.crossing.of_block.number))
            box.note_sent(channel, item.step)
    assert sent == [(4, number) for number in range(SLICES - lacking, SLICES)] + [
        (5, number) for number in range(SLICES)
    ]
    assert box.waiting == 0


class Kind(NamedTuple):
    """A kind of link."""

    crossings: tuple[Crossing, ...]
    link: Callable[[Outbox], Link]
    labelled: Crossing | None = None
    exchange: Exchange | None = None


GRADIENTS = (*sliced(Cargo.WEIGHT_GRADIENT, 0, 3), *sliced(Cargo.WEIGHT_GRADIENT, 1, 4))
WEIGHTS = (*sliced(Cargo.WEIGHTS, 0, 4), *sliced(Cargo.WEIGHTS, 2, 3))
SAMPLES, LABELS, LATER = (
    Crossing("edge", "near", cargo, index, WHOLE)
    for cargo, index in ((Cargo.FEATURE, 0), (Cargo.LABEL, 4), (Cargo.FEATURE, 2))
)
PARTS = tuple(
    Crossing("edge", "near", Cargo.FEATURE, 1, rows, (slot,)) for slot, rows in enumerate((WHOLE, Rows(0, 2)))
)
"""Tensors of one feature, of which the peer needs different samples."""
KINDS = {
    "slices": Kind((*GRADIENTS, *WEIGHTS), OrderedLink),
    "features": Kind((*PARTS, LATER, *WEIGHTS), OrderedLink),
    "steps that have not begun": Kind((*PARTS, *GRADIENTS), lambda box: OrderedLink(box, 4)),
    "labels with their samples": Kind((SAMPLES, LABELS, LATER, *GRADIENTS), Link, SAMPLES),
    "segments": Kind(
        tuple(one for cargo in CARGOES for block in range(4) for one in sliced(cargo, block, 1)),
        Link,
        exchange=Exchange(((2, 4), (0, 2)), ((0, 1), (1, 4)), barrier=True),
    ),
}
ACTS: Sequence[Callable[[Link, int], None]] = (
    Link.put,
    Link.put_step,
    Link.send,
    Link.arrive,
    Link.lose,
    Link.settle,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(200))
@given(seed=st.integers(0, 1 << 32))
def test_whatever_is_lost_the_peer_gets_each_load_once_in_the_order_of_urgency(kind, seed):
    dice = random.Random(seed)
    crossings, make, labelled, exchange = KINDS[kind]
    found = channels(crossings)
    own = next((channel for channel in found if channel.crossing == labelled), None)
    link = make(Outbox(found, own, exchange=exchange))
    for _ in range(60):
        dice.choice(ACTS)(link, dice.randrange(12))
    link.drain()
