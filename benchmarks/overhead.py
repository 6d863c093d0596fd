"""Cost of split training beyond its parts: `python -m benchmarks.overhead`.

In one run, per feature size: a step of the split system over loopback (K = 0, fp32), T1 and T3 measured alone, and the
time that a raw TCP socket takes for the same bytes both ways between two processes. Goal: split - (T1 + T3 + socket) is
at most 3 ms or 5 % of the step, whichever is larger.

A second table says what the overhead consists of. A hot loop is not how a step runs: there each side works while the
other waits, and a core that has waited starts slowly. So blocks and plain gRPC (the same bytes, nothing of ours) are
measured at the rhythm of a step too; what they lose by that no training system over gRPC can avoid, and the rest is ours.
"""

import itertools
import statistics
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.support.echo import grpc_seconds, socket_seconds
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_process
from isthmus import EdgeConfig, train
from shared.config import load_config
from shared.model.build import build_model
from shared.model.chain import build_chain
from shared.model.features import features_of
from shared.registry import LossConfig
from shared.telemetry.logs import configure_logs
from shared.training.device import prepare_process
from shared.training.losses import LossHead
from shared.training.policies import KeptGraph
from shared.training.recipe import Recipe
from shared.training.stage import lone_stage

BATCH = 32
CASES = {"0.1 MB": (8, 10), "1 MB": (32, 16), "4 MB": (32, 32), "16 MB": (128, 32)}
"""Channels and image size that make the feature so large."""
STEPS, WARM_UP = 200, 50
ROUNDS, FIRST_ROUNDS = 25, 5
"""Rounds of bytes to and fro, and of blocks alone; so many first ones do not count."""


def config(channels: int, size: int, address: str, *more: str) -> EdgeConfig:
    """A run of that feature size against the trainer at `address`; `more` flags."""
    flags = [
        f"trainer.address={address}",
        'model.factory="benchmarks.networks:two_convolutions"',
        f"model.kwargs={{channels={channels}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size={size}}}}}',
        f"training.max_steps={STEPS}",
        "training.epochs=100",
        "training.evaluate_every_epochs=0",
        "deployment.cut=1",
        "compute.threads=1",
        "compute.device=cpu",
        *more,
    ]
    return load_config(EdgeConfig, None, flags, environ={})


def split_seconds(channels: int, size: int, address: str) -> list[float]:
    """Seconds of each step of the whole system."""
    moments: list[float] = []
    train(config(channels, size, address), lambda _progress: moments.append(time.perf_counter()))
    return [after - before for before, after in itertools.pairwise(moments)][WARM_UP:]


def alone_seconds(channels: int, size: int, idle_seconds: float) -> tuple[list[float], list[float]]:
    """T1 and T3 of each step without any network, after so much idleness before each part (0: a hot loop)."""
    module = build_model("benchmarks.networks:two_convolutions", {"channels": channels}, 0)
    inputs, labels = torch.randn(BATCH, 3, size, size), torch.randint(10, (BATCH,))
    chain = build_chain(module, inputs)
    run = config(channels, size, "127.0.0.1:1").training
    recipe = Recipe(
        optimizer=run.optimizer, schedule=run.schedule, loss=run.loss, seed=0, steps_per_epoch=1, total_steps=STEPS
    )
    cpu = torch.device("cpu")
    stage, cloud = lone_stage(chain, 0, 1, recipe, cpu), lone_stage(chain, 1, 2, recipe, cpu)
    edge = KeptGraph(stage)
    head = LossHead(LossConfig(), None)
    edge_seconds, cloud_seconds = [], []
    for step in range(ROUNDS):
        time.sleep(idle_seconds)
        started = time.perf_counter()
        features = edge.forward(step, (inputs,))
        forward_seconds = time.perf_counter() - started
        time.sleep(idle_seconds)
        started = time.perf_counter()
        graph = cloud.forward(step, features, input_gradient=True)
        _, gradients = head.gradient(features_of(graph.outputs), labels)
        feature_gradients = cloud.backward(graph, gradients)
        cloud.update(step)
        cloud_seconds.append(time.perf_counter() - started)
        time.sleep(idle_seconds)
        started = time.perf_counter()
        edge.backward(step, feature_gradients)
        stage.update(step)
        edge_seconds.append(forward_seconds + time.perf_counter() - started)
    return edge_seconds[FIRST_ROUNDS:], cloud_seconds[FIRST_ROUNDS:]


@dataclass(frozen=True)
class Case:
    """The measurements for one size of feature; all in seconds, hot and at the rhythm of a step."""

    name: str
    count: int
    split: list[float]
    edge: list[float]
    cloud: list[float]
    socket: list[float]
    blocks_in_rhythm: float
    grpc_hot: list[float]
    grpc_in_rhythm: list[float]


def measure(name: str, address: str) -> Case:
    """Measure one case against a running trainer."""
    channels, size = CASES[name]
    count = BATCH * channels * size * size * 4
    split = split_seconds(channels, size, address)
    edge, cloud = alone_seconds(channels, size, 0.0)
    idle_seconds = statistics.median(cloud)
    slow = map(statistics.median, alone_seconds(channels, size, idle_seconds))
    return Case(
        name,
        count,
        split,
        edge,
        cloud,
        socket_seconds(count, ROUNDS, 0.0)[FIRST_ROUNDS:],
        sum(slow),
        grpc_seconds(count, ROUNDS, 0.0)[FIRST_ROUNDS:],
        grpc_seconds(count, ROUNDS, idle_seconds)[FIRST_ROUNDS:],
    )


def _shown(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"{middle * 1e3:.2f} ({low * 1e3:.2f} to {high * 1e3:.2f})"


def main() -> None:
    """Measure every case and print both tables."""
    configure_logs("warning")
    prepare_process(1)  # as agent and trainer do, or the blocks alone would be the slower ones
    goal = Table("feature", "split step", "T1 alone", "T3 alone", "socket", "overhead", "allowed", "goodput / socket")
    parts = Table(
        "overhead of",
        "all",
        "blocks start cold",
        "gRPC over socket",
        "in rhythm",
        "Isthmus",
        "plain gRPC, hot",
        "in rhythm ",
    )
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        for case in (measure(name, address) for name in CASES):
            step, t1, t3, raw, hot, rhythm = map(
                statistics.median,
                (case.split, case.edge, case.cloud, case.socket, case.grpc_hot, case.grpc_in_rhythm),
            )
            overhead, allowed = step - t1 - t3 - raw, max(0.003, 0.05 * step)
            goal.add_row(
                f"{case.name} ({case.count:,} bytes)",
                *map(_shown, (case.split, case.edge, case.cloud, case.socket)),
                f"{overhead * 1e3:.2f}",
                f"{allowed * 1e3:.2f} {'kept' if overhead <= allowed else 'MISSED'}",
                f"{raw / max(step - t1 - t3, 1e-9):.2f}",
            )
            cold = case.blocks_in_rhythm - t1 - t3
            ours = overhead - cold - (rhythm - raw)
            figures = (overhead, cold, hot - raw, rhythm - hot, ours)
            parts.add_row(
                case.name,
                *(f"{seconds * 1e3:.2f}" for seconds in figures),
                *map(_shown, (case.grpc_hot, case.grpc_in_rhythm)),
            )
    console = Console(width=150)
    console.print(
        f"milliseconds, median (quartiles) of {STEPS - WARM_UP} steps and {ROUNDS - FIRST_ROUNDS} rounds alone; {machine()}"
    )
    console.print(goal)
    console.print(parts)


if __name__ == "__main__":
    main()
