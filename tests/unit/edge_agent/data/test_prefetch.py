"""Reading ahead of training: each batch comes once and in order, whichever thread reads it."""

import asyncio
import threading
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch

from edge_agent.data import Batch, Reading, prefetch
from edge_agent.data.prefetch import (
    LONG_SECONDS,
    MOST_READY,
    MOST_SECONDS,
    PATIENCE,
    QUICK_SECONDS,
    SLACK,
    TRIED,
    Prefetcher,
)
from shared.concurrency.threads import WorkerThread
from shared.errors import DataError

BATCHES = 60


@pytest.fixture(name="loader")
def loader_thread():
    worker = WorkerThread("load")
    yield worker
    worker.close()


def numbered(reads, *, before=lambda _step: None, count=BATCHES):
    """Yield numbered batches. `reads` records the thread that read each."""
    for step in range(count):
        before(step)
        reads.append(threading.current_thread().name)
        yield Batch(step, torch.full((1, 1), float(step)), torch.zeros(1, dtype=torch.int64))


async def taken(batches, ready, count=BATCHES):
    """Collect the numbers of the batches that one thread prepares and takes, as the compute thread does."""
    found = []
    while len(found) < count:
        if await asyncio.to_thread(batches.make_ready):
            found.append(int(batches.take().inputs[0]))
        else:
            await ready.wait()
            ready.clear()
    return found


async def prefetched(loader, reads, reading, **how):
    """Return all batches, and for each whether it is read ahead."""
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    source = numbered(reads, **how)
    async with Prefetcher(source, loader, lambda: loop.call_soon_threadsafe(ready.set), reading) as batches:
        count = how.get("count", BATCHES)
        assert await taken(batches, ready, count) == list(range(count))
        assert not await asyncio.to_thread(batches.make_ready)
        assert not batches.is_ready
    return [name == "load" for name in reads]


async def test_batches_of_worker_processes_are_fetched_on_the_loaders_thread(loader):
    assert all(await prefetched(loader, [], Reading.AHEAD))


async def test_batches_copied_from_memory_are_read_on_the_thread_that_takes_them(loader):
    assert not any(await prefetched(loader, [], Reading.AT_ONCE))


class Clock:
    """The clock of the reading thread, independent of this machine's load."""

    def __init__(self):
        self._processor_seconds = self._seconds = 0.0

    def work(self, seconds):
        self._processor_seconds += seconds
        self._seconds += seconds

    def wait(self, seconds):
        self._seconds += seconds

    def monotonic(self):
        return self._seconds

    def thread_time(self):
        return self._processor_seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    return clock


async def test_a_source_that_proves_quick_is_read_on_the_taking_thread_from_then_on(loader, clock):
    ahead = await prefetched(loader, [], Reading.AS_IT_SHOWS, before=lambda _step: clock.work(QUICK_SECONDS / 2))
    assert all(ahead[:TRIED])
    assert not any(ahead[-TRIED:])


async def test_a_slow_source_is_never_read_on_the_taking_thread(loader, clock):
    assert all(await prefetched(loader, [], Reading.AS_IT_SHOWS, before=lambda _step: clock.work(2 * QUICK_SECONDS)))


@pytest.mark.parametrize(("seconds", "most"), [(10 * QUICK_SECONDS, TRIED), (1.1 * MOST_SECONDS, 1)])
async def test_a_source_that_becomes_slow_is_fetched_ahead_again(loader, clock, seconds, most):
    """A disk is an example: it takes no processor time of the loader's thread, and a direct reader would wait."""
    reads, slow = [], threading.Event()

    def wait(_step):
        if reads and reads[-1] != "load":
            slow.set()
        if slow.is_set():
            clock.wait(seconds)

    ahead = await prefetched(loader, reads, Reading.AS_IT_SHOWS, before=wait)
    assert all(ahead[:TRIED])
    assert 2 <= ahead.count(False) <= 1 + most, "the first was not slow yet"
    assert all(ahead[-TRIED:])


async def test_a_source_about_as_quick_as_allowed_stays_on_the_taking_thread_though_others_use_the_processors(
    loader, clock
):
    def read(_step):
        clock.work(0.9 * QUICK_SECONDS)
        if threading.current_thread().name != "load":
            clock.wait((0.9 * SLACK - 0.9) * QUICK_SECONDS)

    ahead = await prefetched(loader, [], Reading.AS_IT_SHOWS, before=read)
    assert not any(ahead[ahead.index(False) :])


async def test_a_source_that_was_slow_once_is_tried_again_later_and_less_and_less_often(loader, clock):
    slow_reads = 2

    def read(_step):
        nonlocal slow_reads
        if slow_reads and threading.current_thread().name != "load":
            slow_reads -= 1
            clock.wait(2 * MOST_SECONDS)

    count = (1 + PATIENCE + PATIENCE**2) * TRIED + 50
    ahead = await prefetched(loader, [], Reading.AS_IT_SHOWS, before=read, count=count)
    spells = [sum(group) for is_ahead, group in ((key, list(each)) for key, each in groupby(ahead)) if is_ahead]
    assert len(spells) == 3
    for spell, least in zip(spells, (TRIED, PATIENCE * TRIED, PATIENCE**2 * TRIED), strict=True):
        assert least <= spell <= least + MOST_READY
    assert not ahead[-1]


@pytest.mark.parametrize("reading", list(Reading))
@pytest.mark.parametrize("step", [0, TRIED + MOST_READY + 5])
async def test_a_batch_that_cannot_be_read_ends_it_with_its_reason(loader, reading, step):
    def fail(at):
        if at == step:
            raise DataError("sample 7 cannot be read")

    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    source = numbered([], before=fail)
    async with Prefetcher(source, loader, lambda: loop.call_soon_threadsafe(ready.set), reading) as batches:
        assert await taken(batches, ready, step) == list(range(step))
        await asyncio.to_thread(batches.make_ready)
        with pytest.raises(DataError, match="sample 7"):
            await batches.failure
        assert not batches.is_ready


async def test_leaving_it_waits_for_the_batch_that_is_being_read(loader):
    begun, go_on = threading.Event(), threading.Event()

    def hold(_step):
        begun.set()
        go_on.wait()

    batches = Prefetcher(numbered([], before=hold), loader, lambda: None, Reading.AT_ONCE)
    reading = asyncio.create_task(asyncio.to_thread(batches.make_ready))
    await asyncio.to_thread(begun.wait)
    leaving = asyncio.create_task(batches.__aexit__())
    try:
        await asyncio.wait({leaving}, timeout=0.1)  # A generator cannot be closed while it runs.
        assert not leaving.done()
    finally:
        go_on.set()
    assert await reading
    await leaving


async def test_it_says_when_others_had_better_not_wait_for_a_batch(loader, clock):
    source = numbered([], before=lambda step: clock.wait((0.5 if step == 0 else 1.5) * LONG_SECONDS))
    async with Prefetcher(source, loader, lambda: None, Reading.AT_ONCE) as batches:
        for is_long in (False, False, True):
            assert batches.reads_long == is_long
            assert await asyncio.to_thread(batches.make_ready)
            assert not batches.reads_long, "one is ready"
            batches.take()


async def test_reading_ahead_goes_on_though_the_taker_is_held_up_until_there_is_no_room(loader, monkeypatch):
    """While one is taken, the loader's thread may fill the room again and rest."""

    def held_up():
        rests = threading.Event()
        loader.send(rests.set)
        assert rests.wait(5.0)
        return 0.0

    monkeypatch.setattr(prefetch, "time", SimpleNamespace(monotonic=held_up, thread_time=lambda: 0.0))
    count = 3 * MOST_READY
    assert count < TRIED, "all are read ahead"
    ready = threading.Event()

    def take_all(batches):
        for _ in range(count):
            while not batches.make_ready():
                if not ready.wait(5.0):
                    return False
                ready.clear()
            batches.take()
        return True

    async with Prefetcher(numbered([], count=count), loader, ready.set, Reading.AS_IT_SHOWS) as batches:
        assert await asyncio.to_thread(take_all, batches), "no batch came any more"
