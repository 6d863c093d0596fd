"""A session of one placement in virtual time: production links between its workers, that may be lost at any packet."""

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from shared.concurrency.threads import Runner
from shared.events import Events
from shared.events.worker import StepComputed, WorkerDone, WorkerStops
from shared.execution.model_facts import facts_of
from shared.model.chain import Chain
from shared.placement import Placement, Source, StepPlan, Window, held_blocks
from shared.runtime.compute_loop import Samples
from shared.runtime.forms import Forms
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.training.held_blocks import HeldBlocks
from shared.training.recipe import Recipe
from shared.wire.isthmus.v1.link_pb2 import StepDone
from tests.support.linking import CHUNK_BYTES, Linking, Seconds
from tests.support.placed import CPU, WatchedBlocks, chain_of, method
from tests.support.virtual import InlineWorker, Wire

Batches = Sequence[tuple[Tensor, Tensor]]


class Ends(Events):
    """Notes when one worker ends its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribe(StepComputed, self._note_end)
        self.ended_seconds: dict[int, float] = {}
        """By step: moments of the loop."""

    def _note_end(self, event: StepComputed) -> None:
        self.ended_seconds[event.step] = asyncio.get_running_loop().time()


class Heard(Ends):
    """The news that one worker hears of the steps of all."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[int, list[StepDone]] = defaultdict(list)
        self.stopping: list[str] = []
        self.changed = asyncio.Event()
        self.subscribe(WorkerDone, self._note_done)
        self.subscribe(WorkerStops, self._note_stopping)

    def _note_done(self, event: WorkerDone) -> None:
        self.done[event.report.step].append(event.report)
        self.changed.set()

    def _note_stopping(self, event: WorkerStops) -> None:
        self.stopping.append(event.worker)
        self.changed.set()

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for something to be heard."""
        while not is_there():
            self.changed.clear()
            await self.changed.wait()

    async def all_done(self, steps: Iterable[int], workers: int) -> None:
        """Wait until so many workers have done these steps."""
        await self.until(lambda: all(len(self.done[step]) >= workers for step in steps))


class Given:
    """A source of batches that are all ready: the rows of one worker."""

    def __init__(self, source: Source, batch_size: int, batches: Batches) -> None:
        self._left = [
            Samples(len(labels), (inputs[rows.begin : rows.end].clone(),), (labels[rows.begin : rows.end].clone(),))
            for inputs, labels in reversed(batches)
            for rows in [source.rows.scaled(len(labels), batch_size)]
        ]

    @property
    def holds_one(self) -> bool:
        """See `BatchSource`."""
        return self.is_ready

    @property
    def is_ready(self) -> bool:
        """See `BatchSource`."""
        return bool(self._left)

    @property
    def reads_long(self) -> bool:
        """See `BatchSource`."""
        return False

    def make_ready(self) -> bool:
        """See `BatchSource`."""
        return self.is_ready

    def take(self) -> Samples:
        """See `BatchSource`."""
        return self._left.pop()


def feed(executor: PlacementExecutor, placement: Placement, first_step: int, batches: Batches) -> None:
    """Have batch after batch begin with the samples of this worker, if it has any."""
    for source in placement.sources:
        if source.worker == executor.worker:
            executor.read_from(Given(source, placement.batch_size, batches), first_step + len(batches))


async def drive(
    executors: Mapping[str, PlacementExecutor],
    beside: Iterable[Coroutine[Any, Any, None]],
    ended: Coroutine[Any, Any, None],
) -> None:
    """Let executors that compute go on until `ended` has. Raises what an executor, or what is beside them, fails with."""
    kept = [asyncio.create_task(one) for one in beside]
    working = [*kept, *(executor.failure for executor in executors.values())]
    end = asyncio.create_task(ended)
    try:
        await asyncio.wait({end, *working}, return_when=asyncio.FIRST_COMPLETED)
        for task in working:
            if task.done():
                task.result()
        await end
    finally:
        for task in (*kept, end):
            task.cancel()
        await asyncio.gather(*kept, end, return_exceptions=True)


class LinkedSession:
    """All workers on one loop, over links that take no time or over wires."""

    def __init__(
        self,
        module: nn.Module,
        placement: Placement,
        told: Recipe,
        backward: str = "replay",
        seconds: Seconds = lambda: 0.0,
        losses: Iterable[int] = (),
        computing: Callable[[str], Runner] | None = None,
        wires: Callable[[str, str], Wire] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        make_chain: Callable[[Any], Chain] = chain_of,
    ) -> None:
        """seconds: before and after each call, and before each packet. losses: after how many packets each stream is lost, one
        after the other; then none is. computing: where a worker computes, in place of calls that take `seconds`. wires: by the
        sender and the receiver. make_chain: of each worker's module.
        """
        self.chains = {worker: make_chain(copy.deepcopy(module)) for worker in placement.workers}
        self.placement = placement
        self._linking = Linking(seconds, losses, wires, chunk_bytes)
        self._heard = Heard()
        self.events: dict[str, Ends] = {}
        """By worker."""
        self.plan = plan = StepPlan(placement, facts_of(next(iter(self.chains.values())), told))
        self._told, self._how = told, method(backward)
        self._threads = {
            worker: Threads(InlineWorker(seconds) if computing is None else computing(worker), InlineWorker(seconds))
            for worker in placement.workers
        }
        self.workers: dict[str, PlacementExecutor] = {}
        self.forms: dict[str, Forms] = {}
        """Forms of the crossings of each worker, by its name."""
        self.blocks: dict[str, WatchedBlocks] = {}
        for worker in placement.workers:
            if not held_blocks(placement, worker) and not any(one.worker == worker for one in placement.sources):
                continue
            self.events[worker] = Ends() if self.workers else self._heard
            self.make(worker, self.chains[worker], Window(plan, worker))
        self._links = plan.links

    def make(self, worker: str, chain: Chain, window: Window) -> None:
        """Make the executor of a worker, of a chain of its own."""
        held = HeldBlocks(chain, self._told, CPU, held_blocks(self.placement, worker), self._told.precision_of(worker))
        self.blocks[worker] = blocks = WatchedBlocks(held, self.plan, worker, self._how)
        forms = self.forms[worker] = Forms(self.placement, chain, lambda _labels: None, self._told)
        emit = self.events[worker].emit
        self.workers[worker] = PlacementExecutor(window, forms, blocks, self._threads[worker], emit)

    @property
    def streams(self) -> int:
        """Number of streams that there were, of all links."""
        return self._linking.streams

    @property
    def done(self) -> dict[int, list[StepDone]]:
        """Reports that the first worker has heard, by step."""
        return self._heard.done

    @property
    def done_seconds(self) -> list[float]:
        """Moments of the loop at which all workers had done each step."""
        return [
            max(one.ended_seconds[step] for one in self.events.values()) for step in sorted(self._heard.ended_seconds)
        ]

    async def train(self, batches: Batches) -> None:
        """All batches, until every worker has done them."""
        for executor in self.workers.values():
            executor.start()
        for worker in self.workers:
            self.feed(worker, batches)
        await drive(
            self.workers,
            self._linking.keep_all(self.workers, self._links),
            self.all_done(len(batches)),
        )
        for executor in self.workers.values():
            await executor.stop()

    def feed(self, worker: str, batches: Batches) -> None:
        """Have all batches begin at a worker, which computes."""
        feed(self.workers[worker], self.placement, 0, batches)

    async def all_done(self, steps: int) -> None:
        """Wait until the first worker has heard that every worker has done so many steps."""
        await self._heard.all_done(range(steps), len(self.workers))
