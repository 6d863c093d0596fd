"""Load of the link: whether it is kept full, known, and free for control calls: `python -m benchmarks.link_full [--json
PATH]`.

Real agent and trainer in two network namespaces, blocks that cost nothing. Where the uplink is the bottleneck: payload
bits per second over the shaped rate (goal 0.95; plain TCP, measured in the same run, is the most there is), and what the
agent says that the link carries over what plain TCP says (goal: within 10 %), from the third step on. And on a link of
20 Mbit/s and 40 ms that is saturated both ways: how long a GetSession takes (goal 250 ms).
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bound import deployed
from benchmarks.net import Measure, Namespace
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import Agent
from benchmarks.support.report import Spread, seconds_per_step, write_json

GOODPUT_GOAL, RATE_GOAL, CALL_GOAL_SECONDS = 0.95, 0.10, 0.250
RATES = (10e6, 50e6, 100e6)
WIDE = 1e9
"""The downlink beside them."""
CALL_RATE, CALL_ROUND_TRIP_SECONDS = 20e6, 0.040
BATCH, FEATURE_FLOATS, STALENESS = 32, 4000, 5
PAYLOAD_BYTES = BATCH * (FEATURE_FLOATS * 4 + 8)
"""The payload of one step: a feature of 0.5 MB, and labels."""
MEASURED_SECONDS = 15.0
WARM_UP_STEPS = 8
METRICS = "127.0.0.1:9464"
KNOWN_FROM_STEP = 2
"""By then ten acks have come: the first tensor alone goes in eight chunks."""


@dataclass(frozen=True)
class Full:
    """A link that the uplink fills, over its shaped rate."""

    bits_per_second: float
    tcp: float
    goodput: Spread
    known_rate: Spread
    """Rate that the agent measured, over the rate that plain TCP reached."""
    known_rate_worst: float
    """The look that was farthest off."""


@dataclass(frozen=True)
class Calls:
    """Seconds of control calls on a saturated link."""

    count: int
    median: float
    percentile_95: float
    worst: float
    goodput: float


def flags(steps: int) -> list[str]:
    """The agent's settings."""
    idle = 'compute="sleep", edge=[0, 0], cloud=[0, 0]'
    return [
        'model.factory="benchmarks.networks:timed_halves"',
        f"model.kwargs={{{idle}, feature_floats={FEATURE_FLOATS}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size=1, samples={BATCH * steps}}}}}',
        f"data.batch_size={BATCH}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        f"deployment.staleness={STALENESS}",
        "deployment.cut=1",
        f"metrics.listen={METRICS}",
        "compute.threads=1",
        "compute.device=cpu",
    ]


def steps_at(bits_per_second: float) -> int:
    """So many that they take the time that is measured."""
    return WARM_UP_STEPS + round(MEASURED_SECONDS * bits_per_second / 8 / PAYLOAD_BYTES) + STALENESS


def goodput(ends: list[float]) -> Spread:
    """Payload bits per second, of the moments at which features had arrived."""
    seconds = seconds_per_step(ends, WARM_UP_STEPS, STALENESS + 1, segment=4)
    return Spread.of([PAYLOAD_BYTES * 8 / step for step in seconds])


def watch(edge: Namespace, *arguments: str) -> subprocess.Popen[str]:
    """`benchmarks.support.watch` in the edge's namespace."""
    return edge.popen([sys.executable, "-m", "benchmarks.support.watch", *arguments], stdout=subprocess.PIPE, text=True)


def seen(watching: subprocess.Popen[str]) -> Any:
    """Return the observations of a watcher, once it has ended."""
    return json.loads(watching.communicate()[0])


def fill(bits_per_second: float) -> Full:
    """Train over a link whose uplink has that rate."""
    with deployed("full") as (link, address):
        link.shape(bits_per_second, WIDE)
        tcp = Measure(link).uplink(3.0)
        watching = watch(link.edge, "rates", f"http://{METRICS}", "600")
        run = Agent(address, flags(steps_at(bits_per_second)), link.edge.command([])).wait()
        known = [up / tcp for steps, up, _ in seen(watching) if steps > KNOWN_FROM_STEP]
    reached = goodput(run.ends("uplink", "feature"))
    return Full(
        bits_per_second,
        tcp / bits_per_second,
        reached.scaled(1 / bits_per_second),
        Spread.of(known),
        max(known, key=lambda ratio: abs(ratio - 1)),
    )


def call() -> Calls:
    """Make control calls while both directions are saturated."""
    with deployed("calls", delay_seconds=CALL_ROUND_TRIP_SECONDS) as (link, address):
        link.shape(CALL_RATE, CALL_RATE)
        agent = Agent(address, flags(steps_at(CALL_RATE)), link.edge.command([]))
        watching = watch(link.edge, "calls", address, agent.session, str(MEASURED_SECONDS))
        run = agent.wait()
        seconds = sorted(seen(watching))
    middle = Spread.of(seconds).median
    reached = goodput(run.ends("uplink", "feature")).median / CALL_RATE
    return Calls(len(seconds), middle, seconds[int(len(seconds) * 0.95)], seconds[-1], reached)


def main() -> None:
    """Measure every rate, then the calls, and print both."""
    parser = benchmark_parser("link_full", __doc__)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    console.print(f"{machine()}; a feature of {PAYLOAD_BYTES:,} bytes, K = {STALENESS}; median (quartiles)")
    table = Table("uplink", "plain TCP / rate", "payload / rate", "", "known / plain TCP", "farthest off", "")
    filled = []
    for rate in RATES:
        full = fill(rate)
        filled.append(full)
        table.add_row(
            f"{rate / 1e6:.0f} Mbit/s",
            f"{full.tcp:.3f}",
            full.goodput.show(digits=3),
            "kept" if full.goodput.median >= GOODPUT_GOAL else "MISSED",
            full.known_rate.show(digits=3),
            f"{full.known_rate_worst:.3f}",
            "kept" if abs(full.known_rate_worst - 1) <= RATE_GOAL else "MISSED",
        )
    console.print(table)
    calls = call()
    console.print(
        f"GetSession on {CALL_RATE / 1e6:.0f} Mbit/s, {CALL_ROUND_TRIP_SECONDS * 1e3:.0f} ms, payload / rate "
        f"{calls.goodput:.3f}: median {calls.median * 1e3:.0f} ms, 95th percentile {calls.percentile_95 * 1e3:.0f} ms, "
        f"longest {calls.worst * 1e3:.0f} ms of {calls.count} (goal {CALL_GOAL_SECONDS * 1e3:.0f} ms: "
        f"{'kept' if calls.worst <= CALL_GOAL_SECONDS else 'MISSED'})"
    )
    write_json(arguments.json, "link_full", filled=filled, calls=calls)


if __name__ == "__main__":
    main()
