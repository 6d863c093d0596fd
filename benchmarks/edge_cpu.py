"""Processor time of a step, on the edge and in the cloud, beyond the blocks: `python -m benchmarks.edge_cpu`.

    python -m benchmarks.edge_cpu [--steps N] [--repeats N] [--against FOLDER] [--batch N ...] [--codec NAME ...]
        [--staleness K ...] [--turns N] [--seconds S] [--set FLAG ...] [--cpu-share S] [--mbit R] [--json PATH]

Agent and trainer run on loopback with one thread each, and their processor time and context switches come from the kernel,
for whole processes. --against names another checkout of this project: its agent and trainer stand still while ours go on, and
the other way round, every second or so, and the ratios are those of turns that follow one another. --set gives our agent a
flag that the other may lack. --mbit puts the turns on the two ends of a link of this rate, with each agent held to
--cpu-share of a core, and measures nothing else; it needs root. Messages are counted on the wire in further runs. In the same
run are measured the edge's blocks alone, PyTorch's own pipeline (rank 0 is its edge) with one, two and four microbatches, and
a bare gRPC stream that carries the same bytes to and fro in one message each way, which is the floor: two runs of different
length are subtracted, so that what starting and ending take cancels out.
"""

import atexit
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.net import linked_namespaces, slowed_device
from benchmarks.networks import SMALL_CNN_FEATURE, RandomImages, small_cnn
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.bare_stream import stream_cost
from benchmarks.support.machine import machine
from benchmarks.support.message_count import CountingRelay
from benchmarks.support.peer_stage import LEARNING_RATE, MOMENTUM, Pipeline, command, small_cnn_flags
from benchmarks.support.process_use import use_of
from benchmarks.support.report import Spread, write_json
from benchmarks.support.turns import Cost, Pair, killed_after, turns
from shared.training.device import prepare_process

HERE = Path(__file__).resolve().parent.parent
FEATURE_BYTES_A_SAMPLE = 4 * SMALL_CNN_FEATURE[0] * SMALL_CNN_FEATURE[1] * SMALL_CNN_FEATURE[2]
BATCHES = (3, 32, 256)
"""0.05, 0.5 and 4 MB a feature."""
_EPOCH_STEPS = 20_000
CODECS, STALENESS, MICROBATCHES = ("fp32", "uniform8", "uniform4"), (0, 2, 5), (1, 2, 4)


_COMPUTE = (
    "compute.threads=1",
    "compute.device=cpu",
    "log.format=json",
    "control.listen=none",
    "checkpoints.location=none",
)


@dataclass(frozen=True)
class Tree:
    """A checkout of this project, and further flags of its agent."""

    folder: Path
    flags: Sequence[str] = ()


@dataclass(frozen=True)
class Place:
    """The commands with which a process of the edge, and one of the cloud, is started, and the trainer's host."""

    edge: Sequence[str] = ()
    cloud: Sequence[str] = ()
    host: str = "127.0.0.1"


LOOPBACK = Place()


@dataclass(frozen=True)
class Slow:
    """A link and a device that are slower than this machine's."""

    bits_per_second: float
    cpu_share: float

    @contextmanager
    def places(self, count: int) -> Iterator[list[Place]]:
        """Yield a place for each of so many pairs that take turns."""
        with ExitStack() as stack:
            places = []
            for number in range(count):
                link = stack.enter_context(linked_namespaces(f"turns{number}"))
                link.shape(self.bits_per_second, self.bits_per_second)
                device = stack.enter_context(slowed_device(self.cpu_share))
                places.append(Place(device.command(link.edge.command([])), link.cloud.command([]), link.cloud.address))
            yield places


@dataclass(frozen=True)
class Row:
    """A step of one system at one size; seconds, and how often."""

    system: str
    batch: int
    edge: Spread
    """Processor time on the edge."""
    cloud: Spread
    step: Spread
    edge_voluntary: Spread
    """Context switches, as `ProcessUse` tells them apart."""
    edge_involuntary: Spread
    cloud_voluntary: Spread
    cloud_involuntary: Spread
    messages: tuple[float, float] | None = None
    """gRPC's, up and down; None where they were not counted."""
    over_before: tuple[Spread, Spread, Spread] | None = None
    """Ratios of the other checkout's turns: processor time of the edge and of the cloud, and seconds of a step."""


@functools.cache
def _same_networks() -> Path:
    """A folder in which the processes of every checkout find this one's networks and data, so that all compute the same."""
    folder = tempfile.TemporaryDirectory(prefix="isthmus-")
    atexit.register(folder.cleanup)
    Path(folder.name, "benchmarks").symlink_to(HERE / "benchmarks")
    return Path(folder.name)


def start_process(tree: Path, *command: str, wrapper: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*wrapper, sys.executable, *command],
        cwd=_same_networks(),
        env={**os.environ, "PYTHONPATH": str(tree), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _trainer(tree: Path, place: Place) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A trainer of `tree` and its address; killed at the end of the body."""
    served = (f"server.listen={place.host}:0", "server.insecure=true", 'models.allowed=["benchmarks"]', *_COMPUTE)
    flags = [f"--set={flag}" for flag in served]
    trainer = start_process(tree, "-m", "cloud_trainer.main", "serve", *flags, wrapper=place.cloud)
    assert trainer.stderr is not None
    with killed_after(trainer):
        events = (json.loads(line) for line in trainer.stderr if line.startswith("{"))
        yield trainer, next(event["address"] for event in events if event.get("event") == "listening")


@contextmanager
def _pair(
    tree: Tree, batch: int, codec: str, staleness: int, place: Place = LOOPBACK, *, counted: bool
) -> Iterator[tuple[Pair, CountingRelay | None]]:
    """An agent and a trainer of `tree` that train; killed at the end. counted: by a relay between them that counts messages."""
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        _trainer(tree.folder, place) as (trainer, address),
        CountingRelay(address) if counted else nullcontext() as relay,
    ):
        reads = np.memmap(Path(folder) / "reads", np.int64, "w+", shape=1)
        flags = [
            f"trainer.address={relay.address if relay else address}",
            f"output.directory={folder}/out",
            *small_cnn_flags(batch, _EPOCH_STEPS, codec, staleness),
            f'data.train={{factory="benchmarks.networks:CountedImages", kwargs={{samples={batch * _EPOCH_STEPS}, '
            f'file="{folder}/reads"}}}}',
            "training.epochs=1000",  # until it is killed
            *_COMPUTE,
            *tree.flags,
        ]
        command = ("-m", "edge_agent.main", "run", *(f"--set={flag}" for flag in flags))
        agent = start_process(tree.folder, *command, wrapper=place.edge)
        with killed_after(trainer, agent):
            yield Pair(agent, trainer, lambda: int(reads[0]) // batch), relay


def messages_a_step(tree: Tree, batch: int, codec: str, staleness: int, steps: int) -> tuple[float, float]:
    """Count the gRPC messages that go up and down in a step."""
    with _pair(tree, batch, codec, staleness, counted=True) as (pair, relay):
        assert relay is not None
        marks = [(pair.wait_for(reached), *relay.messages) for reached in (steps, 3 * steps)]
    (first, *before), (last, *after) = marks
    up, down = ((more - less) / (last - first) for more, less in zip(after, before, strict=True))
    return up, down


def _peer(batch: int, microbatches: int, steps: int) -> Cost:
    """A whole run of PyTorch's pipeline."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        pipeline = Pipeline(f"127.0.0.1:{free.getsockname()[1]}", microbatches, steps, batch)
    began = time.monotonic()
    cloud, edge = (start_process(HERE, *command(rank, pipeline)[1:], GLOO_SOCKET_IFNAME="lo") for rank in (1, 0))
    edge_use, cloud_use = use_of(edge), use_of(cloud)
    return Cost(edge_use, cloud_use, time.monotonic() - began)


def _blocks_alone(batch: int, *, replay: bool) -> float:
    """Seconds of processor time of a step of the edge's blocks. replay: with a second forward, as K > 0 needs it."""
    block = small_cnn()[0]
    optimizer = torch.optim.SGD(block.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    images = torch.stack([RandomImages(1)[0][0]] * batch)
    gradient = torch.ones_like(block(images))
    seconds = []
    for _ in range(200):
        began = time.process_time()
        if replay:
            with torch.no_grad():
                block(images)
        block(images).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def _row(system: str, batch: int, costs: Sequence[Cost], messages: tuple[float, float] | None = None) -> Row:
    return Row(
        system,
        batch,
        Spread.of([cost.edge.seconds for cost in costs]),
        Spread.of([cost.cloud.seconds for cost in costs]),
        Spread.of([cost.step for cost in costs]),
        Spread.of([cost.edge.voluntary for cost in costs]),
        Spread.of([cost.edge.involuntary for cost in costs]),
        Spread.of([cost.cloud.voluntary for cost in costs]),
        Spread.of([cost.cloud.involuntary for cost in costs]),
        messages,
    )


def _floor(batch: int, steps: int, repeats: int) -> Row:
    """A bare stream that carries a feature there and as much back, in the style that the product uses."""
    costs = [stream_cost("asyncio", batch * FEATURE_BYTES_A_SAMPLE, 1, steps) for _ in range(repeats)]
    return _row("a bare gRPC stream", batch, [Cost(one.client, one.server, one.round) for one in costs], (1.0, 1.0))


def measured(
    trees: dict[str, Tree],
    batch: int,
    codec: str,
    staleness: int,
    steps: int,
    seconds: float,
    count: int,
    slow: Slow | None = None,
) -> list[Row]:
    """A row a tree, of which the first is ours; the trees take turns, each first as often as the others. Messages are counted
    on loopback."""
    with ExitStack() as stack:
        places = [LOOPBACK] * len(trees) if slow is None else stack.enter_context(slow.places(len(trees)))
        pairs = {
            name: stack.enter_context(_pair(tree, batch, codec, staleness, place, counted=False))[0]
            for (name, tree), place in zip(trees.items(), places, strict=True)
        }
        costs = turns(pairs, steps, seconds, count)
    rows = [
        _row(
            f"{name}, {codec}, K = {staleness}",
            batch,
            costs[name],
            messages_a_step(tree, batch, codec, staleness, steps) if slow is None else None,
        )
        for name, tree in trees.items()
    ]
    if "before" in costs:
        rows[0] = replace(rows[0], over_before=_ratios(costs["ours"], costs["before"]))
    return rows


def _ratios(ours: Sequence[Cost], before: Sequence[Cost]) -> tuple[Spread, Spread, Spread]:
    """The ratios of turns that followed one another: of the edge, of the cloud, of the step."""
    pairs = list(zip(ours, before, strict=True))
    return (
        Spread.of([one.edge.seconds / other.edge.seconds for one, other in pairs]),
        Spread.of([one.cloud.seconds / other.cloud.seconds for one, other in pairs]),
        Spread.of([one.step / other.step for one, other in pairs]),
    )


def main() -> None:
    """Measure, and print one table."""
    parser = benchmark_parser("edge_cpu", __doc__)
    parser.add_argument(
        "--steps", type=int, default=200, help="of the shorter of two runs, and before the first turn (%(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs (%(default)s)")
    parser.add_argument("--turns", type=int, default=20, help="of a checkout (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (%(default)s)")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="samples of 16 KiB a batch")
    parser.add_argument("--codec", nargs="+", default=CODECS, help="of both directions")
    parser.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    parser.add_argument("--set", action="append", default=[], help="a flag of our agent alone")
    parser.add_argument("--cpu-share", type=float, default=1.0, help="of a core, of the agents that take turns")
    parser.add_argument("--mbit", type=float, help="each way, of the link between agents and trainers that take turns")
    arguments = parser.parse_args()
    if arguments.mbit is None and arguments.cpu_share != 1.0:
        parser.error("--cpu-share goes with --mbit")
    slow = None if arguments.mbit is None else Slow(arguments.mbit * 1e6, arguments.cpu_share)
    prepare_process(1)  # as agent and trainer do
    trees = {"ours": Tree(HERE, arguments.set)}
    if arguments.against:
        trees["before"] = Tree(arguments.against.resolve())
    console = Console(width=200)
    console.print(
        f"{machine()}; milliseconds a step, median (quartiles) of {arguments.repeats} pairs of runs or {arguments.turns} "
        "turns; messages and context switches (voluntary + involuntary) a step"
    )
    table = Table(
        "feature",
        "system",
        "edge's CPU",
        "beyond its blocks",
        "cloud's CPU",
        "step",
        "messages up, down",
        "switches of the edge",
        "of the cloud",
        "ours / before:\nedge, cloud, step",
    )
    rows: list[Row] = []

    def show(row: Row, blocks_seconds: float) -> None:
        rows.append(row)
        feature = f"{row.batch * FEATURE_BYTES_A_SAMPLE / 1e6:.2f} MB"
        beyond = f"{(row.edge.median - blocks_seconds) * 1e3:.2f}"
        table.add_row(
            feature,
            row.system,
            row.edge.show(1e3, 2),
            beyond,
            row.cloud.show(1e3, 2),
            row.step.show(1e3, 2),
            "-" if row.messages is None else f"{row.messages[0]:.2f}, {row.messages[1]:.2f}",
            f"{row.edge_voluntary.median:.1f} + {row.edge_involuntary.median:.1f}",
            f"{row.cloud_voluntary.median:.1f} + {row.cloud_involuntary.median:.1f}",
            "\n".join(ratio.show(1.0, 2) for ratio in row.over_before or ()),
        )

    for batch in arguments.batch:
        blocks = {replay: _blocks_alone(batch, replay=replay) for replay in (False, True)}
        for microbatches in () if slow is not None else MICROBATCHES:
            if batch % microbatches == 0:
                runs = [
                    _peer(batch, microbatches, 3 * arguments.steps).less(
                        _peer(batch, microbatches, arguments.steps), 2 * arguments.steps
                    )
                    for _ in range(arguments.repeats)
                ]
                show(
                    _row(f"1F1B, {microbatches} microbatch{'es' if microbatches > 1 else ''}", batch, runs),
                    blocks[False],
                )
        if slow is None:
            show(_floor(batch, arguments.steps, arguments.repeats), 0.0)
        for codec in arguments.codec:
            for staleness in arguments.staleness:
                for row in measured(
                    trees, batch, codec, staleness, arguments.steps, arguments.seconds, arguments.turns, slow
                ):
                    show(row, blocks[staleness > 0])
    console.print(table)
    write_json(arguments.json, "edge_cpu", rows=rows)


if __name__ == "__main__":
    main()
