"""Ours beside PyTorch's own pipeline on the same link: `python -m benchmarks.peer [--only PLACE] [--json PATH]`.

The peer is `torch.distributed.pipelining` (Schedule1F1B over gloo, 1 to 8 microbatches) between the same two network
namespaces, in the same run, on the same small network: a feature of 0.5 MB at batch 32. Links of 50 and 200 Mbit/s each
way; the same with the edge held to a fifth of a core, and with a round trip of 40 ms. What the link allows is printed
beside it: the time of one feature at 32 bits over what plain TCP carries, both directions at once. Goals: at 32 bits not
slower than the peer; at 8 bits both ways, 3.5 times as fast or more at 50 Mbit/s.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bound import deployed
from benchmarks.net import Link, Measure, slowed_device
from benchmarks.networks import SMALL_CNN_FEATURE
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.peer_stage import BATCH, Pipeline, pipeline_ends, small_cnn_flags
from benchmarks.support.processes import run_agent
from benchmarks.support.report import Spread, seconds_per_step, write_json

SPEED_GOAL = 3.5
RATES = (50e6, 200e6)
MICROBATCHES = (1, 2, 4, 8)
"""A delay costs the peer once a microbatch, and few of them leave it little to overlap."""
PEER_PORT = 29511
OURS = (("fp32", 0), ("fp32", 2), ("fp32", 5), ("uniform8", 2), ("uniform8", 5))
"""Codec of both directions, and K."""
FEATURE_BITS = BATCH * SMALL_CNN_FEATURE[0] * SMALL_CNN_FEATURE[1] * SMALL_CNN_FEATURE[2] * 32
STEPS, WARM_UP_STEPS, TAIL_STEPS, SEGMENT_STEPS = 80, 20, 6, 6
SLOW_CPU_SHARE = 0.2
FAR_SECONDS = 0.040


@dataclass(frozen=True)
class Place:
    """A link and a device."""

    bits_per_second: float
    round_trip_seconds: float = 0.0
    cpu_share: float | None = None

    def __str__(self) -> str:
        extra = f", {self.round_trip_seconds * 1e3:.0f} ms" if self.round_trip_seconds else ""
        slow = "" if self.cpu_share is None else f", edge at {self.cpu_share:.0%} of a core"
        return f"{self.bits_per_second / 1e6:.0f} Mbit/s{extra}{slow}"


PLACES = (
    *(Place(rate) for rate in RATES),
    *(Place(rate, cpu_share=SLOW_CPU_SHARE) for rate in RATES),
    *(Place(rate, round_trip_seconds=FAR_SECONDS) for rate in RATES),
)


@dataclass(frozen=True)
class Run:
    """Seconds per step of one system in one place."""

    place: Place
    system: str
    seconds: Spread


def peer_seconds(link: Link, wrapper: list[str], microbatches: int) -> list[float]:
    """Seconds per step of PyTorch's pipeline, as the edge sees it."""
    pipeline = Pipeline(f"{link.edge.address}:{PEER_PORT}", microbatches, STEPS, BATCH)
    ends = pipeline_ends(pipeline, (wrapper, link.cloud.command([])))
    return seconds_per_step(ends, WARM_UP_STEPS, TAIL_STEPS, SEGMENT_STEPS)


def our_seconds(address: str, wrapper: list[str], codec: str, staleness: int) -> list[float]:
    """Seconds per step of ours, as the edge sees it."""
    flags = [
        *small_cnn_flags(BATCH, STEPS, codec, staleness),
        "compute.threads=1",
        "compute.device=cpu",
    ]
    ends = run_agent(address, flags, wrapper).ends("edge", "backward")
    return seconds_per_step(ends, WARM_UP_STEPS, TAIL_STEPS, SEGMENT_STEPS)


def link_seconds(link: Link) -> float:
    """Return the time of a feature at 32 bits while the other direction is busy too: no lossless system does better."""
    measure = Measure(link)
    both = [measure.start(direction, 4.0) for direction in ("uplink", "downlink")]
    return FEATURE_BITS / min(measure.wait(started) for started in both)


@contextmanager
def edge_at(link: Link, place: Place) -> Iterator[list[str]]:
    """Yield the command to start edge processes with."""
    if place.cpu_share is None:
        yield link.edge.command([])
        return
    with slowed_device(place.cpu_share) as device:
        yield device.command(link.edge.command([]))


def measure_place(place: Place, report: list[Run]) -> float:
    """Add every system's run to `report`; returns what the link allows at 32 bits."""
    with deployed("peer", delay_seconds=place.round_trip_seconds) as (link, address), edge_at(link, place) as wrapper:
        link.shape(place.bits_per_second, place.bits_per_second)
        allowed = link_seconds(link)
        for microbatches in MICROBATCHES:
            seconds = peer_seconds(link, wrapper, microbatches)
            counted = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
            report.append(Run(place, f"1F1B, {counted}", Spread.of(seconds)))
        for codec, staleness in OURS:
            seconds = our_seconds(address, wrapper, codec, staleness)
            report.append(Run(place, f"ours, {codec}, K = {staleness}", Spread.of(seconds)))
    return allowed


def main() -> None:
    """Measure every place and print a table for each."""
    parser = benchmark_parser("peer", __doc__)
    parser.add_argument("--only", default="", help="the places whose names have this in them, as 'of a core'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    console.print(f"{machine()}; a feature of {FEATURE_BITS // 8:,} bytes at 32 bits; milliseconds, median (quartiles)")
    runs: list[Run] = []
    allowed = {}
    for place in (place for place in PLACES if arguments.only in str(place)):
        before = len(runs)
        allowed[str(place)] = measure_place(place, runs)
        here = runs[before:]
        best = min(run.seconds.median for run in here if run.system.startswith("1F1B"))
        table = Table(
            "system", "step", "peer / this", f"link's {allowed[str(place)] * 1e3:.1f} / this", title=str(place)
        )
        for run in here:
            median = run.seconds.median
            table.add_row(
                run.system, run.seconds.show(1e3), f"{best / median:.2f}", f"{allowed[str(place)] / median:.2f}"
            )
        console.print(table)
    write_json(arguments.json, "peer", runs=runs, link_seconds=allowed)


if __name__ == "__main__":
    main()
