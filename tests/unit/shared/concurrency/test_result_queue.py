"""Items that a thread hands over to the event loop arrive once, in order, and no more wait than the bound."""

import asyncio

import pytest

from shared.concurrency.result_queue import ResultQueue
from shared.concurrency.threads import WorkerThread

ITEMS = 500


async def test_items_of_a_thread_are_taken_on_the_event_loop_once_and_in_order():
    taken: list[int] = []
    queue, thread = ResultQueue(taken.append, 8), WorkerThread("thread")
    queue.open()

    def some(first: int) -> int:
        while first < ITEMS and not queue.is_full:
            queue.put(first)
            first += 1
            if first % 3 == 0:
                queue.announce()
        return first

    try:
        first = 0
        while first < ITEMS:
            first = await thread.run(some, first)
            queue.take_all()
    finally:
        thread.close()
    assert taken == list(range(ITEMS))


async def test_the_bound_holds_and_a_look_makes_room():
    queue = ResultQueue([].append, 2)
    queue.open()
    for item in range(2):
        assert not queue.is_full
        queue.put(item)
    assert queue.is_full
    with pytest.raises(AssertionError, match="no more than 2 items wait"):
        queue.put(2)
    queue.take_all()
    assert not queue.is_full


async def test_what_is_announced_is_taken_without_a_look():
    taken: list[int] = []
    queue = ResultQueue(taken.append, 2)
    queue.open()
    queue.put(1)
    queue.announce()
    assert not taken, "the thread does not take itself"
    await asyncio.sleep(0)
    assert taken == [1]


async def test_an_error_of_the_taker_stops_the_thread_and_is_kept():
    def refuse(_item: int) -> None:
        raise LookupError("a defect of ours")

    queue = ResultQueue(refuse, 2)
    queue.open()
    queue.put(1)
    queue.announce()
    await asyncio.sleep(0)
    assert queue.must_stop
    assert isinstance(queue.failure, LookupError)


async def test_a_closed_queue_takes_nothing_more():
    taken: list[int] = []
    queue = ResultQueue(taken.append, 2)
    queue.open()
    queue.put(1)
    queue.close()
    queue.take_all()
    assert queue.must_stop
    assert not taken
