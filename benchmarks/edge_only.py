"""Cost of the device alone beyond a plain PyTorch loop: `python -m benchmarks.edge_only`.

    python -m benchmarks.edge_only [--pairs N] [--seconds S] [--only CASE] [--json PATH]

Both train the same model with the same optimizer on one thread for computing. The plain loop reads batches by torch's
DataLoader with no worker processes, as a user writes it. Ours is a whole run without a trainer, as `edge-agent run` does it,
with its loader, metrics and checks. The two take turns in random order in one process, each with weights of its own, and a
pair gives a ratio of the time that passed and one of the processor time of all threads; the latter holds on a busy machine
too. Each case has a process of its own. Goal: at most 1.02.
"""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json
from edge_agent.config import EdgeConfig, ModelConfig
from edge_agent.data import digits
from edge_agent.data.samples import Dataset
from edge_agent.run import run_training
from edge_agent.training.events import Progressed
from edge_agent.training.statistics import Statistics
from shared.config import load_config
from shared.events import Events
from shared.model.build import build_model
from shared.training.device import prepare_process

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
    """A model with its data, as the configuration of a run names them and as the plain loop builds them."""

    name: str
    flags: tuple[str, ...]
    module: Callable[[], nn.Module]
    dataset: Callable[[], Dataset]
    batch: int = 32


@dataclass(frozen=True)
class Seconds:
    """The time of one step: time that passes, and processor time of all threads."""

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


def vectors() -> RandomVectors:
    """A dataset of a user's own: an object with a length and items."""
    return RandomVectors(1024, 64)


def _mlp_case(width: int) -> Case:
    flags = (
        'model.factory="benchmarks.edge_only:mlp"',
        f"model.kwargs={{width={width}}}",
        'data.train={factory="benchmarks.edge_only:vectors"}',
    )
    return Case(f"MLP, width {width}", flags, lambda: mlp(width), vectors)


CASES = (Case("demo", (), demo, digits), *(_mlp_case(width) for width in (256, 1536, 4096)))


class _Clock:
    """Notes the moments between which steps are counted."""

    def __init__(self) -> None:
        self._began = self._began_processor = 0.0

    def start(self) -> None:
        """The first steps are done."""
        self._began, self._began_processor = time.perf_counter(), time.process_time()

    def seconds(self, steps: int) -> Seconds:
        """Return the mean times of so many steps since the start."""
        passed, used = time.perf_counter() - self._began, time.process_time() - self._began_processor
        return Seconds(passed / steps, used / steps)


def plain_seconds(case: Case, steps: int) -> Seconds:
    """The loop that a user writes."""
    module = case.module().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss_function = nn.CrossEntropyLoss()
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        case.dataset(),  # type: ignore[arg-type]  # it takes whatever has a length and items
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


class _Timing:
    def __init__(self, steps: int) -> None:
        self._clock, self._steps = _Clock(), steps
        self.seconds: Seconds

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _note(self, statistics: Statistics) -> None:
        if statistics.steps == WARM_UP_STEPS:
            self._clock.start()
        elif statistics.steps == WARM_UP_STEPS + self._steps and statistics.is_flowing:
            self.seconds = self._clock.seconds(self._steps)


def run_seconds(case: Case, steps: int) -> Seconds:
    """A run of ours with no trainer."""
    timing = _Timing(steps)
    flags = [
        *case.flags,
        "trainers=[]",
        "control.listen=none",
        "compute.threads=1",
        f"data.batch_size={case.batch}",
        f'training.optimizer={{name="sgd", learning_rate={LEARNING_RATE}, momentum={MOMENTUM}}}',
        "training.evaluate_every_epochs=0",
        "training.epochs=100000",
        f"training.max_steps={WARM_UP_STEPS + steps}",
    ]
    asyncio.run(run_training(load_config(EdgeConfig, None, flags, environ={}), timing.subscribe))
    return timing.seconds


def measure(name: str, pairs: int, seconds: float) -> Row:
    """The ratios of so many pairs of a case, of which every half takes about so many seconds."""
    case = next(case for case in CASES if case.name == name)
    prepare_process(1)  # as the agent does; the plain loop gains by it, too
    rough = plain_seconds(case, LEAST_STEPS).step
    steps = max(LEAST_STEPS, int(seconds / rough))
    ways = {"plain": plain_seconds, "ours": run_seconds}
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
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run (%(default)s)")
    parser.add_argument("--only", help="the case whose name begins so")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    console.print(f"{machine()}; median (quartiles) of {arguments.pairs} pairs")
    table = Table("model", "plain ms", "ours ms", "ours / plain: time", "ours / plain: processor")
    names = [case.name for case in CASES if case.name.startswith(arguments.only or "")]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        rows = list(processes.map(measure, names, [arguments.pairs] * len(names), [arguments.seconds] * len(names)))
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
