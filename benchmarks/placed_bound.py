"""Chains of workers and labels that stay, beside their bound: `python -m benchmarks.placed_bound [--times N] [--json PATH]`.

Real processes: the agent in one network namespace, every trainer in another. Blocks sleep, and the link between the two is
shaped as in `benchmarks.bound`; between trainers nothing slows the features down. For each placement, each mix of slow and
quick parts (the slowest takes 60 ms) and each K: seconds per step over max(T_max, (T_sum + round trips) / (K + 1)), the parts
measured alone. A worker's part holds the replay where K > 0 and the stage waits for its gradient. Goal: 1.05.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bound import BATCH, GOAL, MIXES
from benchmarks.net import Link, Measure, linked_namespaces
from benchmarks.planning.mixes import mixes
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import run_agent, trainer_process
from benchmarks.support.report import Spread, seconds_per_step, write_json
from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.config import load_config
from shared.model.features import Gradients, Slots, features_of
from shared.registry import LossConfig
from shared.training.device import prepare_process
from shared.training.losses import LossHead
from shared.training.policies import KeptGraph, Replay
from shared.training.stage import lone_stage

STALENESS = (0, 1, 2, 3, 5)
FEATURE_FLOATS = 500
"""The feature of one sample: 64 kB a batch at 32 bits."""
FEATURE_BITS = BATCH * FEATURE_FLOATS * 32
TRAINERS = ("near", "far", "last")
WARM_UP_STEPS, SEGMENT_STEPS, SEGMENTS = 24, 12, 4
"""A stretch that is measured holds whole rounds of K + 1 steps, for every K here."""


@dataclass(frozen=True)
class Shape:
    """A placement of as many blocks as there are names here, and what its parts should take in seconds per step."""

    placement: str
    mix: str
    workers: tuple[str, ...]
    """By block."""
    blocks: tuple[float, ...]
    uplink: float
    downlink: float

    @property
    def trainers(self) -> list[str]:
        return [name for name in dict.fromkeys(self.workers) if name != "edge"]

    @property
    def round_trips(self) -> int:
        """Over the shaped link in a step: so many features and so many error gradients cross it."""
        return sum("edge" in pair for pair in pairwise(self.workers))


class Links(NamedTuple):
    """The measured times of the shaped link, in seconds: those of a step in either direction, and of a byte there and
    back."""

    uplink: float
    downlink: float
    round_trip: float


@dataclass(frozen=True)
class Case:
    """One shape at one K, measured."""

    shape: Shape
    staleness: int
    workers_seconds: dict[str, float]
    links: Links
    bound_seconds: float
    step_seconds: Spread
    ratio: Spread


def shapes(times: float) -> Iterator[Shape]:
    """Six mixes each of chains of three and four workers, and of labels that stay; every part takes so many times as long."""
    for count in (3, 4):
        workers = ("edge", *TRAINERS[: count - 2], TRAINERS[-1])
        for mix in mixes(count):
            blocks, hop = tuple(times * seconds for seconds in mix.workers), times * mix.hops[0]
            yield Shape(f"chain of {count}", mix.name, workers, blocks, hop, hop)
    for each in MIXES[:6]:
        blocks = (times * each.edge / 2, times * each.cloud, times * each.edge / 2)
        links = times * each.uplink, times * each.downlink
        yield Shape("labels stay", each.name, ("edge", TRAINERS[-1], "edge"), blocks, *links)


def flags(shape: Shape, staleness: int, addresses: Mapping[str, str]) -> list[str]:
    """The agent's settings. addresses: of the trainers, by name.

    Where a stage replays, its forward costs it a second one: 1/4, and 1/2 for the backward, and 1/4 once more.
    """
    amounts = []
    for index, seconds in enumerate(shape.blocks):
        replays = staleness > 0 and index + 1 < len(shape.blocks)
        amounts.append([seconds / 4 if replays else seconds / 2, seconds / 2])
    steps = WARM_UP_STEPS + SEGMENT_STEPS * SEGMENTS + staleness + 2
    ranges = {
        worker: [f"{block}:{block + 1}" for block, name in enumerate(shape.workers) if name == worker]
        for worker in shape.workers
    }
    named = ", ".join(f'{{name="{name}", address="{addresses[name]}"}}' for name in shape.trainers)
    return [
        f"trainers=[{named}]",
        'model.factory="benchmarks.networks:timed_blocks"',
        f"model.kwargs={{amounts={amounts}, feature_floats={FEATURE_FLOATS}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size=1, samples={BATCH * steps}}}}}',
        f"data.batch_size={BATCH}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        f"deployment.staleness={staleness}",
        *(f"placement.{worker}={json.dumps(blocks)}" for worker, blocks in ranges.items()),
        "compute.threads=1",
        "compute.device=cpu",
    ]


def workers_alone(shape: Shape, chosen: list[str], staleness: int, steps: int = 8) -> dict[str, float]:
    """Median seconds of each worker's part of a step: its stages in a loop, in this process, without link or codec."""
    experiment = Experiment(load_config(EdgeConfig, None, chosen, environ={}))
    blocks, last = len(shape.blocks), len(shape.blocks) - 1
    stages = [
        lone_stage(experiment.chain, block, block + 1, experiment.recipe, torch.device("cpu"))
        for block in range(blocks)
    ]
    policies = [
        (KeptGraph if staleness == 0 or index == last else Replay)(stage, input_gradient=index > 0)
        for index, stage in enumerate(stages)
    ]
    head = LossHead(LossConfig(), None)
    seconds: dict[str, list[float]] = {worker: [0.0] * steps for worker in shape.workers}
    for batch in experiment.loader.iterate(0, steps):
        features: Slots = batch.features
        moments = [time.perf_counter()]
        for policy in policies:
            features = policy.forward(batch.step, features)
            moments.append(time.perf_counter())
        gradients: Gradients = head.gradient(features_of(features), batch.labels)[1]
        for policy, stage in zip(reversed(policies), reversed(stages), strict=True):
            gradients = policy.backward(batch.step, gradients)
            stage.update(batch.step)
            moments.append(time.perf_counter())
        for index, worker in enumerate((*shape.workers, *reversed(shape.workers))):
            seconds[worker][batch.step] += moments[index + 1] - moments[index]
    return {worker: Spread.of(each).median for worker, each in seconds.items()}


def measure_case(link: Link, addresses: Mapping[str, str], shape: Shape, staleness: int, alone: Links) -> Case:
    """Run an agent and compare."""
    chosen = flags(shape, staleness, addresses)
    workers = workers_alone(shape, chosen, staleness)
    parts = (*workers.values(), alone.uplink, alone.downlink)
    bound = max(*parts, (sum(parts) + shape.round_trips * alone.round_trip) / (staleness + 1))
    run = run_agent(None, chosen, link.edge.command([]))
    seconds = seconds_per_step(run.step_ends(), WARM_UP_STEPS, staleness + 1, SEGMENT_STEPS)
    ratio = Spread.of([step / bound for step in seconds])
    return Case(shape, staleness, workers, alone, bound, Spread.of(seconds), ratio)


def shape_link(link: Link, shape: Shape) -> None:
    """Have all that a step sends take the shape's seconds each way; TCP's headers leave 95.6 % of a rate for payload."""
    bits = shape.round_trips * FEATURE_BITS / 0.956
    link.shape(bits / shape.uplink, bits / shape.downlink)


def links_alone(measure: Measure, shape: Shape) -> Links:
    """The bytes of a step over what plain TCP carries just now."""
    bits = shape.round_trips * FEATURE_BITS
    return Links(bits / measure.uplink(3.0), bits / measure.downlink(3.0), measure.round_trip())


@contextmanager
def trainers(link: Link) -> Iterator[dict[str, str]]:
    """Three trainers in the cloud that may dial each other; yields their addresses by name."""
    with ExitStack() as running:
        yield {
            name: running.enter_context(
                trainer_process(
                    "compute.threads=1",
                    "compute.device=cpu",
                    "control.listen=none",
                    f'peers.allowed=["{link.cloud.address}:*"]',
                    wrapper=link.cloud.command([]),
                    listen=f"{link.cloud.address}:0",
                )
            )
            for name in TRAINERS
        }


def row(case: Case) -> list[str]:
    """A case for the table."""
    alone = (*case.workers_seconds.values(), case.links.uplink, case.links.downlink)
    return [
        case.shape.placement,
        case.shape.mix,
        str(case.staleness),
        "  ".join(f"{seconds * 1e3:.1f}" for seconds in alone),
        f"{case.bound_seconds * 1e3:.1f}",
        case.step_seconds.show(1e3),
        case.ratio.show(digits=3),
        "" if case.ratio.median <= GOAL else "MISSED",
    ]


def main() -> None:
    """Measure every case and print the table."""
    parser = benchmark_parser("placed_bound", __doc__)
    parser.add_argument("--placement", action="append", help="only placements of this name (default: all)")
    parser.add_argument("--mix", action="append", help="only mixes of this name (default: all)")
    parser.add_argument("--staleness", type=int, action="append", help=f"only this K (default: {STALENESS})")
    parser.add_argument(
        "--times", type=float, default=1.0, help="how much longer all parts take, for a machine that is busy"
    )
    arguments = parser.parse_args()
    prepare_process(1)  # as agent and trainer do
    console = Console(width=160)
    console.print(f"{machine()}; milliseconds, median (quartiles); goal: ratio <= {GOAL}")
    table = Table("placement", "mix", "K", "workers, uplink, downlink alone", "bound", "step", "step / bound", "")
    cases = []
    with linked_namespaces("placed") as link, trainers(link) as addresses:
        measure = Measure(link)
        for shape in shapes(arguments.times):
            if shape.placement not in (arguments.placement or [shape.placement]):
                continue
            if shape.mix not in (arguments.mix or [shape.mix]):
                continue
            shape_link(link, shape)
            alone = links_alone(measure, shape)
            for staleness in arguments.staleness or STALENESS:
                cases.append(measure_case(link, addresses, shape, staleness, alone))
                table.add_row(*row(cases[-1]))
                print(*row(cases[-1]), file=sys.stderr, flush=True)
    console.print(table)
    console.print(f"{sum(case.ratio.median <= GOAL for case in cases)} of {len(cases)} within {GOAL}")
    write_json(arguments.json, "placed_bound", goal=GOAL, cases=cases)


if __name__ == "__main__":
    main()
