"""A worker that computes on a thread of its own: it continues by itself, and stops, yields and fails at the right places."""

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
import torch
from torch import nn

from shared.concurrency.threads import WorkerThread
from shared.errors import ModelError
from shared.events.worker import Computed, StepComputed
from shared.execution.model_facts import facts_of
from shared.placement import AGENT, Cargo, Placement, PlacementPlan, Rows, Source, Tile, Window, held_blocks
from shared.runtime.compute_loop import MOST_UNTAKEN
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.training.held_blocks import HeldBlocks
from tests.support.linked import Given, Heard
from tests.support.placed import CLASSES, CPU, INPUTS, batch_of, built, chain_of, method, recipe
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES = 6
STEPS = 40


class CountedWorker(WorkerThread):
    """A worker that counts the event loop's requests."""

    asked = 0

    async def run(self, function, *args, **kwargs):
        """Run as `WorkerThread` does."""
        self.asked += 1
        return await super().run(function, *args, **kwargs)


class Gate(nn.Module):
    """A forward pass that waits for permission, and fails in a given step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, INPUTS)
        self.is_open, self.entered = threading.Semaphore(1 << 20), threading.Event()
        self.seen, self.fails_at = 0, -1

    def close(self) -> None:
        """Block forward passes from now on. Those of the chain's checks are over."""
        self.is_open, self.seen = threading.Semaphore(0), 0
        self.entered.clear()

    def forward(self, x):
        if not self.training:
            return self.linear(x)
        self.entered.set()
        self.is_open.acquire()
        self.seen += 1
        if self.seen == self.fails_at:
            raise ArithmeticError("this one")
        return self.linear(x)


def alone(blocks: int) -> Placement:
    whole = Rows(0, SAMPLES)
    return Placement(0, blocks, SAMPLES, (AGENT,), (Tile(AGENT, 0, blocks, whole),), (Source(AGENT, whole),))


def shared(blocks: int) -> Placement:
    """Place the first block on the device, with K = 0."""
    whole = Rows(0, SAMPLES)
    tiles = Tile(AGENT, 0, 1, whole), Tile("gpu", 1, blocks, whole)
    return Placement(0, blocks, SAMPLES, (AGENT, "gpu"), tiles, (Source(AGENT, whole),))


def divided(blocks: int) -> Placement:
    """Place the first block on the device and on a trainer, half of a batch each, with K = 0."""
    whole, half = Rows(0, SAMPLES), SAMPLES // 2
    tiles = Tile(AGENT, 0, 1, Rows(0, half)), Tile("gpu", 0, 1, Rows(half, SAMPLES)), Tile("gpu", 1, blocks, whole)
    return Placement(0, blocks, SAMPLES, (AGENT, "gpu"), tiles, (Source(AGENT, whole),), owners={0: "gpu"})


@asynccontextmanager
async def computing(
    module: nn.Module, compute: WorkerThread, heard: Heard, placed: Callable[[int], Placement] = alone
) -> AsyncIterator[PlacementExecutor]:
    """Yield the steps of the device's worker."""
    chain = chain_of(module)
    placement = placed(len(chain.blocks))
    held = HeldBlocks(chain, recipe("sgd"), CPU, held_blocks(placement, AGENT))
    setup = WorkerSetup(AGENT, held, method("replay"), Threads(compute, compute), lambda _labels: None, heard.emit)
    worker = PlacedWorker(setup, PlacementPlan.of(placement, facts_of(chain)))
    worker.start()
    try:
        yield worker.executor
    finally:
        await worker.stop()
        compute.close()


def batches(steps: int) -> Given:
    return Given(Source(AGENT, Rows(0, SAMPLES)), SAMPLES, [batch_of(step, SAMPLES) for step in range(steps)])


async def test_the_steps_of_a_device_alone_are_few_calls_and_the_plain_loops_bits():
    module, compute, heard = built("dropping"), CountedWorker("compute"), Heard()
    plain, ours = PlainTiles(list(module), alone(len(module)), recipe("sgd")), copy.deepcopy(module)
    async with computing(ours, compute, heard) as executor:
        executor.read_from(batches(STEPS), STEPS)
        await heard.all_done(range(STEPS), 1)
        assert compute.asked <= -(-STEPS // MOST_UNTAKEN)
    for step in range(STEPS):
        plain.step(step, *batch_of(step, SAMPLES))
    assert [len(heard.done[step]) for step in range(STEPS)] == [1] * STEPS, "each step is told once"
    assert_same_bits(dict(module.state_dict()), dict(ours.state_dict()))


class ReadSlowly(Given):
    """A source that tells when a batch is read."""

    def told(self, reading: Callable[[], None]) -> "ReadSlowly":
        self._reading = reading
        return self

    def make_ready(self) -> bool:
        """See `BatchSource`."""
        self._reading()
        return super().make_ready()


async def test_a_batch_stays_where_no_more_may_begin_once_it_is_read():
    """As where a worker without a state begins again meanwhile, and the others have to wait for it."""
    module, compute, heard, read = built("dropping"), WorkerThread("compute"), Heard(), threading.Event()
    source = ReadSlowly(Source(AGENT, Rows(0, SAMPLES)), SAMPLES, [batch_of(step, SAMPLES) for step in range(STEPS)])
    async with computing(module, compute, heard) as executor:
        window, admits = executor.window, patch.object(Window, "admitted", 0)

        def close() -> None:
            if not read.is_set():
                admits.start()
                read.set()

        executor.read_from(source.told(close), STEPS)
        await asyncio.to_thread(read.wait)
        await compute.run(lambda: None)  # after the turn in which it was read
        assert (window.fed, window.begun) == (0, 0)
        admits.stop()
        executor.note_ready()
        await heard.all_done(range(STEPS), 1)


async def test_another_user_gets_the_thread_between_two_pieces():
    gate, compute, heard = Gate(), CountedWorker("compute"), Heard()
    async with computing(nn.Sequential(gate, nn.Linear(INPUTS, CLASSES)), compute, heard) as executor:
        gate.close()
        executor.read_from(batches(STEPS), STEPS)
        await asyncio.to_thread(gate.entered.wait)
        others = asyncio.create_task(compute.run(lambda: gate.seen))
        await asyncio.sleep(0)
        gate.is_open.release(STEPS)
        assert await others == 1
        await heard.all_done(range(STEPS), 1)


async def test_when_it_has_stopped_nothing_is_computed_any_more():
    gate, compute, heard = Gate(), WorkerThread("compute"), Heard()
    async with computing(nn.Sequential(gate, nn.Linear(INPUTS, CLASSES)), compute, heard) as executor:
        gate.close()
        executor.read_from(batches(STEPS), STEPS)
        await asyncio.to_thread(gate.entered.wait)
        stopping = asyncio.create_task(executor.stop())
        await asyncio.sleep(0)
        assert not stopping.done(), "a piece is being computed"
        gate.is_open.release(STEPS)
        await stopping
        assert gate.seen == 1
        assert not heard.done


async def test_only_steps_begun_before_the_feeding_ends_are_done():
    gate, compute, heard = Gate(), WorkerThread("compute"), Heard()
    async with computing(nn.Sequential(gate, nn.Linear(INPUTS, CLASSES)), compute, heard) as executor:
        gate.close()
        source = batches(STEPS)
        executor.read_from(source, STEPS)
        await asyncio.to_thread(gate.entered.wait)
        begun = executor.read_to_boundary()
        assert 1 <= begun < STEPS
        gate.is_open.release(STEPS)
        await heard.all_done(range(begun), 1)
        assert (executor.window.begun, len(executor.under_way), gate.seen) == (begun, 0, begun)
        executor.read_from(source, STEPS)
        await heard.all_done(range(STEPS), 1)
        assert gate.seen == STEPS


async def test_a_step_that_fails_surfaces_once_and_those_before_it_are_heard():
    gate, compute, heard = Gate(), WorkerThread("compute"), Heard()
    async with computing(nn.Sequential(gate, nn.Linear(INPUTS, CLASSES)), compute, heard) as executor:
        gate.seen, gate.fails_at = 0, 8
        executor.read_from(batches(STEPS), STEPS)
        with pytest.raises(ModelError, match="this one"):
            await executor.failure
        assert sorted(heard.done) == list(range(7))
        assert executor.has_failed


@pytest.mark.parametrize("step", [0, STEPS // 2, STEPS - 1])
async def test_a_defect_of_a_reader_ends_the_run_and_is_raised(step):
    def fail(event):
        if event.step == step:
            raise LookupError("a defect of ours")

    heard = Heard()
    heard.subscribe(StepComputed, fail)
    async with computing(built("dropping"), WorkerThread("compute"), heard) as executor:
        executor.read_from(batches(STEPS), STEPS)
        with pytest.raises(LookupError):
            await executor.failure
        assert sorted(heard.done) == list(range(step))


async def test_a_batch_that_is_ready_late_is_begun_then():
    class Late:
        """A source whose batch is ready when a test says so."""

        def __init__(self) -> None:
            self.ready = 0
            self.all = batches(2)

        @property
        def holds_one(self):
            """Tell as `BatchSource` does."""
            return self.is_ready

        @property
        def is_ready(self):
            """Tell as `BatchSource` does."""
            return self.ready > 0

        reads_long = False

        def make_ready(self):
            """Prepare as `BatchSource` does."""
            return self.is_ready

        def take(self):
            """Take as `BatchSource` does."""
            self.ready -= 1
            return self.all.take()

    module, compute, heard, source = built("dropping"), WorkerThread("compute"), Heard(), Late()
    async with computing(module, compute, heard) as executor:
        executor.read_from(source, 2)
        for step in range(2):
            await asyncio.sleep(0)
            assert executor.window.begun == step
            source.ready += 1
            await asyncio.to_thread(executor.note_ready)
            await heard.all_done(range(step + 1), 1)
    assert torch.isfinite(next(module.parameters())).all()


async def test_awaited_results_are_reported_before_a_long_read_of_the_next_batch():
    forward = threading.Event()

    class Reading:
        """A source that reads a batch when it is taken. The second read needs permission."""

        def __init__(self) -> None:
            self.all, self.read, self.is_second = batches(2), [], False
            self.waited = threading.Event()

        @property
        def holds_one(self):
            """Tell as `BatchSource` does."""
            return bool(self.read)

        @property
        def is_ready(self):
            """Tell as `BatchSource` does."""
            return bool(self.read) or self.reads_long

        @property
        def reads_long(self):
            """Tell as `BatchSource` does."""
            return not self.read and self.all.is_ready

        def make_ready(self):
            """Prepare as `BatchSource` does."""
            if self.reads_long:
                if self.is_second and forward.wait(10):
                    self.waited.set()
                self.is_second = True
                self.read.append(self.all.take())
            return bool(self.read)

        def take(self):
            """Take as `BatchSource` does."""
            return self.read.pop()

    heard, source = Heard(), Reading()
    heard.subscribe(Computed, lambda _event: forward.set())
    async with computing(built("dropping"), WorkerThread("compute"), heard, shared) as executor:
        executor.read_from(source, 2)
        assert await asyncio.to_thread(source.waited.wait, 20)


async def test_samples_of_a_batch_that_begins_leave_before_this_worker_computes_with_it():
    gate, sent = Gate(), asyncio.Event()
    async with computing(
        nn.Sequential(gate, nn.Linear(INPUTS, CLASSES)), WorkerThread("compute"), Heard(), divided
    ) as executor:
        gate.close()
        with patch.object(
            executor.ends["gpu"], "send", lambda channel, _one: channel.crossing.cargo is Cargo.FEATURE and sent.set()
        ):
            executor.read_from(batches(1), 1)
            try:
                await asyncio.wait_for(sent.wait(), 20)
                assert gate.seen == 0
            finally:
                gate.is_open.release(1)
