"""Loads reach the compute thread once all that a segment needs has come, and count as waiting until they are used."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo, Crossing, Rows
from shared.runtime.load_queue import LoadQueue

WHOLE = Rows(0, 4)
ARRIVING = (
    (),
    (Crossing("edge", "near", Cargo.FEATURE, 1, WHOLE), Crossing("edge", "near", Cargo.LABEL, 4, WHOLE)),
    (Crossing("far", "near", Cargo.ERROR_GRADIENT, 2, WHOLE),),
)
COUNTS = list(map(len, ARRIVING))
NEEDED_BY = [1, 1, 2]
STEPS = 3
LOADS = [
    Parcel(step, 4, crossing, (), place)
    for step in range(STEPS)
    for place, crossing in enumerate(crossing for segment in ARRIVING for crossing in segment)
]


@given(order=st.permutations(LOADS))
def test_the_loads_of_a_segment_are_taken_together_after_the_last_of_them(order):
    changed = asyncio.Event()
    queue, come, used = LoadQueue(COUNTS, NEEDED_BY, changed), [], []
    for arrived in order:
        segment = NEEDED_BY[arrived.place]
        queue.put(arrived)
        come.append(arrived)
        of_segment = [one for one in come if one.step == arrived.step and one.crossing in ARRIVING[segment]]
        is_whole = len(of_segment) == len(ARRIVING[segment])
        assert (bool(queue.ready), changed.is_set()) == (is_whole, is_whole)
        assert queue.waiting == len({one.step for one in come if one not in used})
        assert queue.stop == max((one.step for one in come if one not in used), default=-1) + 1
        if is_whole:
            assert list(queue.ready) == of_segment
            queue.ready.clear()
            assert queue.waiting, "what is taken is not used yet"
            queue.note_used(arrived.step, segment)
            used += of_segment
            changed.clear()
    assert queue.waiting == 0


def test_a_segment_that_needs_nothing_uses_nothing():
    queue = LoadQueue(COUNTS, NEEDED_BY, asyncio.Event())
    queue.put(LOADS[0])
    queue.note_used(0, 0)
    assert queue.waiting == 1
