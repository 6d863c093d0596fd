"""What a step costs in processor time, on the edge and in the cloud, beyond the blocks: `python -m benchmarks.edge_cpu`.

    python -m benchmarks.edge_cpu [--steps N] [--repeats N] [--against FOLDER] [--batch N ...] [--codec NAME ...]
        [--staleness K ...] [--json PATH]

Agent and trainer run on loopback with one thread each. The processor time of a whole process comes from `os.wait4`; two runs of
different length are subtracted, so that what starting and ending take cancels out. In the same run are measured the edge's
blocks alone, PyTorch's own pipeline (rank 0 is its edge) at its cheapest number of microbatches, and a bare gRPC stream that
carries the same bytes to and fro in one message each way, which is the floor. --against names another checkout of this project:
its agent and trainer take turns with ours, and the ratios are ours over its.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.networks import SMALL_CNN_FEATURE, RandomImages, small_cnn
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.bare_stream import stream_cost
from benchmarks.support.machine import machine
from benchmarks.support.peer_stage import LEARNING_RATE, MOMENTUM, small_cnn_flags
from benchmarks.support.processor_time import processor_seconds
from benchmarks.support.report import Spread, write_json

HERE = Path(__file__).resolve().parent.parent
FEATURE_BYTES_A_SAMPLE = 4 * SMALL_CNN_FEATURE[0] * SMALL_CNN_FEATURE[1] * SMALL_CNN_FEATURE[2]
BATCHES = (3, 32, 256)
"""0.05, 0.5 and 4 MB a feature."""
CODECS, STALENESS, MICROBATCHES = ("fp32", "uniform8", "uniform4"), (0, 2, 5), (1, 2, 4)


@dataclass(frozen=True)
class Cost:
    """Seconds a step: processor time of the edge's process and of the other one, and time that passes."""

    edge: float
    cloud: float
    step: float

    def less(self, other: "Cost", steps: int) -> "Cost":
        """The cost of a step, where this run had so many steps more than `other`."""
        return Cost(*((mine - its) / steps for mine, its in zip(_figures(self), _figures(other), strict=True)))


@dataclass(frozen=True)
class Row:
    """One system at one size."""

    system: str
    batch: int
    edge: Spread
    cloud: Spread
    step: Spread


def _figures(cost: Cost) -> tuple[float, float, float]:
    return cost.edge, cost.cloud, cost.step


def _started(tree: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ours(tree: Path, batch: int, codec: str, staleness: int, steps: int) -> Cost:
    """A whole run of an agent with a trainer of its own, both of `tree`."""
    compute = ("compute.threads=1", "compute.device=cpu", "log.format=json", "control.listen=none")
    served = ("server.listen=127.0.0.1:0", "server.insecure=true", 'models.allowed=["benchmarks"]', *compute)
    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
        trainer = _started(tree, "-m", "cloud_trainer.main", "serve", *(f"--set={flag}" for flag in served))
        assert trainer.stderr is not None
        events = (json.loads(line) for line in trainer.stderr if line.startswith("{"))
        address = next(event["address"] for event in events if event.get("event") == "listening")
        flags = [
            f"trainer.address={address}",
            f"output.directory={folder}",
            *small_cnn_flags(batch, steps, codec, staleness),
            *compute,
        ]
        try:
            edge = processor_seconds(
                _started(tree, "-m", "edge_agent.main", "run", *(f"--set={flag}" for flag in flags))
            )
        finally:
            trainer.terminate()
        cloud = processor_seconds(trainer)
        return Cost(edge, cloud, json.loads((Path(folder) / "summary.json").read_text())["seconds"])


def _peer(batch: int, microbatches: int, steps: int) -> Cost:
    """A whole run of PyTorch's pipeline."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    cloud, edge = (
        _started(
            HERE,
            *("-m", "benchmarks.support.peer_stage", str(rank), master, str(microbatches), str(steps), str(batch)),
            GLOO_SOCKET_IFNAME="lo",
        )
        for rank in (1, 0)
    )
    edge_seconds, cloud_seconds = processor_seconds(edge), processor_seconds(cloud)
    return Cost(edge_seconds, cloud_seconds, time.monotonic() - began)


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


def _row(system: str, batch: int, costs: Sequence[Cost]) -> Row:
    edge, cloud, step = zip(*(_figures(cost) for cost in costs), strict=True)
    return Row(system, batch, Spread.of(edge), Spread.of(cloud), Spread.of(step))


def _floor(batch: int, steps: int, repeats: int) -> Row:
    """A bare stream that carries a feature there and as much back, in the style that the product uses."""
    costs = [stream_cost("asyncio", batch * FEATURE_BYTES_A_SAMPLE, 1, steps) for _ in range(repeats)]
    return _row("a bare gRPC stream", batch, [Cost(one.client, one.server, one.round) for one in costs])


def measured(trees: dict[str, Path], batch: int, codec: str, staleness: int, steps: int, repeats: int) -> list[Row]:
    """A row a tree; the trees take turns, each first as often as the others."""
    costs: dict[str, list[Cost]] = {name: [] for name in trees}
    for repeat in range(repeats):
        for name in sorted(trees, reverse=repeat % 2 == 1):
            short, long = (_ours(trees[name], batch, codec, staleness, count) for count in (steps, 3 * steps))
            costs[name].append(long.less(short, 2 * steps))
    return [_row(f"{name}, {codec}, K = {staleness}", batch, costs[name]) for name in trees]


def main() -> None:
    """Measure, and print one table."""
    parser = benchmark_parser("edge_cpu", __doc__)
    parser.add_argument("--steps", type=int, default=200, help="of the shorter of two runs (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs (%(default)s)")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="samples of 16 KiB a batch")
    parser.add_argument("--codec", nargs="+", default=CODECS, help="of both directions")
    parser.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trees = {"ours": HERE} | ({"before": arguments.against.resolve()} if arguments.against else {})
    console = Console(width=150)
    console.print(f"{machine()}; milliseconds a step, median (quartiles) of {arguments.repeats}")
    table = Table(
        "feature",
        "system",
        "edge's CPU",
        "beyond its blocks",
        "cloud's CPU",
        "step",
        "ours / before: edge, cloud, step",
    )
    rows: list[Row] = []

    def show(row: Row, blocks_seconds: float, ratios: str = "") -> None:
        rows.append(row)
        feature = f"{row.batch * FEATURE_BYTES_A_SAMPLE / 1e6:.2f} MB"
        beyond = f"{(row.edge.median - blocks_seconds) * 1e3:.2f}"
        table.add_row(
            feature, row.system, row.edge.show(1e3, 2), beyond, row.cloud.show(1e3, 2), row.step.show(1e3, 2), ratios
        )

    for batch in arguments.batch:
        blocks = {replay: _blocks_alone(batch, replay=replay) for replay in (False, True)}
        peers = []
        for microbatches in MICROBATCHES:
            if batch % microbatches == 0:
                runs = [
                    _peer(batch, microbatches, 3 * arguments.steps).less(
                        _peer(batch, microbatches, arguments.steps), 2 * arguments.steps
                    )
                    for _ in range(arguments.repeats)
                ]
                peers.append(_row(f"1F1B, {microbatches} microbatch{'es' if microbatches > 1 else ''}", batch, runs))
        show(min(peers, key=lambda row: row.edge.median), blocks[False])
        show(_floor(batch, arguments.steps, arguments.repeats), 0.0)
        for codec in arguments.codec:
            for staleness in arguments.staleness:
                ours, *before = measured(trees, batch, codec, staleness, arguments.steps, arguments.repeats)
                ratios = [
                    f"{getattr(ours, name).median / getattr(it, name).median:.2f}"
                    for it in before
                    for name in ("edge", "cloud", "step")
                ]
                show(ours, blocks[staleness > 0], ", ".join(ratios))
                for row in before:
                    show(row, blocks[staleness > 0])
    console.print(table)
    write_json(arguments.json, "edge_cpu", rows=rows)


if __name__ == "__main__":
    main()
