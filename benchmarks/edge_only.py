"""What the device alone costs beyond a plain PyTorch loop: `python -m benchmarks.edge_only`.

    python -m benchmarks.edge_only [--pairs N] [--seconds S] [--only CASE] [--json PATH]

Both train the same model with the same optimizer on one thread for computing. The plain loop reads batches by torch's
DataLoader with no worker processes, as a user writes it. Ours is what a run without a trainer does: all blocks on one worker,
batches from the loader by the prefetcher. The two take turns in random order in one process, each with weights of its own, and
a pair gives a ratio of the time that passed and one of the processor time of all threads. Goal: at most 1.02.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json
from edge_agent.config import ModelConfig
from edge_agent.data import BatchLoader, digits
from edge_agent.data.prefetch import Prefetcher
from edge_agent.data.samples import Dataset
from edge_agent.experiment.workers import Workers
from shared.execution.blocks import Method
from shared.model.build import build_model
from shared.model.chain import build_chain
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.registry import OptimizerConfig
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.watching import watched
from shared.runtime.worker_listener import WorkerListener
from shared.runtime.worker_run import Threads
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import LossHead
from shared.training.recipe import Recipe, ScheduleConfig
from shared.transport.rpc.malloc import keep_message_memory
from shared.wire.isthmus.v1.link_pb2 import StepDone

LEARNING_RATE, MOMENTUM = 0.05, 0.9
WARM_UP_STEPS, LEAST_STEPS = 10, 30


class RandomVectors:
    """Vectors and classes that are drawn once."""

    def __init__(self, samples: int, width: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._inputs = torch.randn(samples, width, generator=generator)
        self._labels = torch.randint(10, (samples,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._inputs[index], self._labels[index]


@dataclass(frozen=True)
class Case:
    """A model with its data."""

    name: str
    module: Callable[[], nn.Module]
    dataset: Dataset
    batch: int


@dataclass(frozen=True)
class Seconds:
    """Of one step: time that passes, and processor time of all threads."""

    step: float
    processor: float


@dataclass(frozen=True)
class Row:
    """The figures of a case."""

    name: str
    plain: Spread
    ours: Spread
    step_ratio: Spread
    processor_ratio: Spread


def demo() -> nn.Module:
    """The model of the demo."""
    return build_model(ModelConfig().factory, ModelConfig().kwargs, 0)


def mlp(width: int) -> nn.Module:
    """Three layers."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


VECTORS = RandomVectors(1024, 64)
CASES = (
    Case("demo", demo, digits(), 32),
    Case("MLP, width 256", lambda: mlp(256), VECTORS, 32),
    Case("MLP, width 1536", lambda: mlp(1536), VECTORS, 32),
    Case("MLP, width 4096", lambda: mlp(4096), VECTORS, 32),
)


class _Clock:
    """Notes the moments between which steps are counted."""

    def __init__(self) -> None:
        self._began = self._began_processor = 0.0

    def start(self) -> None:
        """The first steps are done."""
        self._began, self._began_processor = time.perf_counter(), time.process_time()

    def seconds(self, steps: int) -> Seconds:
        """Of each of so many steps since the start."""
        passed, used = time.perf_counter() - self._began, time.process_time() - self._began_processor
        return Seconds(passed / steps, used / steps)


def plain_seconds(case: Case, steps: int) -> Seconds:
    """The loop that a user writes."""
    module = case.module().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss_function = nn.CrossEntropyLoss()
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        case.dataset,  # type: ignore[arg-type]  # it takes whatever has a length and items
        case.batch,
        shuffle=True,
        drop_last=True,
    )
    clock, correct, left = _Clock(), 0, WARM_UP_STEPS + steps
    while left:
        for inputs, labels in loader:
            optimizer.zero_grad()
            outputs = module(inputs)
            loss = loss_function(outputs, labels)
            loss.backward()
            optimizer.step()
            loss.item()
            correct += int((outputs.argmax(1) == labels).sum())
            left -= 1
            if left == steps:
                clock.start()
            if not left:
                break
    return clock.seconds(steps)


class _Listener(WorkerListener):
    def __init__(self) -> None:
        self._done_step = 0
        self._progressed = asyncio.Event()

    def step_done(self, done: StepDone, /) -> None:
        """See `WorkerListener`."""
        self._done_step = done.step + 1
        self._progressed.set()

    async def reach(self, step: int) -> None:
        """Wait until all steps before this one are done."""
        while self._done_step < step:
            self._progressed.clear()
            await self._progressed.wait()


async def _train_placed(case: Case, steps: int, workers: Workers) -> Seconds:
    chain = build_chain(case.module(), torch.stack([case.dataset[index][0] for index in range(case.batch)]))
    recipe = Recipe(
        optimizer=OptimizerConfig(name="sgd", learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        schedule=ScheduleConfig(name="constant"),
        loss="cross_entropy",
        seed=0,
        steps_per_epoch=len(case.dataset) // case.batch,
        total_steps=WARM_UP_STEPS + steps,
    )
    blocks, whole, clock, stop_step = len(chain.blocks), Rows(0, case.batch), _Clock(), WARM_UP_STEPS + steps
    placement = Placement(0, blocks, case.batch, (AGENT,), (Tile(AGENT, 0, blocks, whole),), (Source(AGENT, whole),))
    listener = _Listener()
    held = HeldBlocks(chain, recipe, torch.device("cpu"), range(blocks))
    method, threads = Method(LossHead(recipe.loss, None)), Threads(workers.compute, workers.codec)
    worker = PlacedWorker(WorkerSetup(AGENT, held, method, threads, lambda _labels: None, listener), placement)
    run = worker.run
    with closing(BatchLoader(case.dataset, case.batch, recipe.seed, drop_last=True, workers=0)) as loader:
        async with Prefetcher(
            loader.iterate(0, stop_step), workers.load, run.note_ready, at_once=loader.reads_at_once
        ) as batches:
            run.feed(batches, WARM_UP_STEPS)
            await watched(listener.reach(WARM_UP_STEPS), run.failure, batches.failure)
            clock.start()
            run.feed(batches, stop_step)
            await watched(listener.reach(stop_step), run.failure, batches.failure)
            seconds = clock.seconds(steps)
    await worker.stop()
    return seconds


def placed_seconds(case: Case, steps: int) -> Seconds:
    """All blocks on one worker of ours."""
    with Workers.started() as workers:
        return asyncio.run(_train_placed(case, steps, workers))


def measure(case: Case, pairs: int, seconds: float) -> Row:
    """The ratios of so many pairs, of which every half takes about so many seconds."""
    rough = plain_seconds(case, LEAST_STEPS).step
    steps = max(LEAST_STEPS, int(seconds / rough))
    ways = {"plain": plain_seconds, "ours": placed_seconds}
    measured: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in range(pairs):
        for name in random.sample(sorted(ways), 2):
            measured[name].append(ways[name](case, steps))
    both = list(zip(measured["ours"], measured["plain"], strict=True))
    return Row(
        case.name,
        Spread.of([one.step for one in measured["plain"]]),
        Spread.of([one.step for one in measured["ours"]]),
        Spread.of([ours.step / plain.step for ours, plain in both]),
        Spread.of([ours.processor / plain.processor for ours, plain in both]),
    )


def main() -> None:
    """Measure, and print one table."""
    parser = benchmark_parser("edge_only", __doc__)
    parser.add_argument("--pairs", type=int, default=11, help="of runs, for each model (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (%(default)s)")
    parser.add_argument("--only", help="the case whose name begins so")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_message_memory()  # as the agent does; the plain loop gains by it, too
    console = Console(width=150)
    console.print(f"{machine()}; median (quartiles) of {arguments.pairs} pairs")
    table = Table("model", "plain ms", "ours ms", "ours / plain: time", "ours / plain: processor")
    rows = [
        measure(case, arguments.pairs, arguments.seconds)
        for case in CASES
        if case.name.startswith(arguments.only or "")
    ]
    for row in rows:
        table.add_row(
            row.name,
            row.plain.show(1e3, 3),
            row.ours.show(1e3, 3),
            row.step_ratio.show(1.0, 3),
            row.processor_ratio.show(1.0, 3),
        )
    console.print(table)
    write_json(arguments.json, "edge_only", rows=rows)


if __name__ == "__main__":
    main()
