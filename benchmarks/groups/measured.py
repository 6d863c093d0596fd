"""Measured steps of groups whose blocks sleep, beside what the simulator says, the bound, and PyTorch's own exchange."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.table import Table

from benchmarks.groups.ddp import Training
from benchmarks.groups.ddp import step_seconds as ddp_step_seconds
from benchmarks.groups.foreign_peers import ForeignPeer
from benchmarks.groups.foreign_peers import step_seconds as foreign_step_seconds
from benchmarks.groups.sleeping import BATCH, TRAINER, WARM_UP_STEPS, amounts, rates, sleeping_group
from benchmarks.support.report import Spread
from edge_agent.planner_names import FLOW
from edge_agent.planning.schedules import STRATEGIES, Layers, bound_seconds, run_seconds

BUCKETS = (1.0, 25.0)
"""Megabytes of gradients that DistributedDataParallel sends at once: small ones, and its default."""
TIMED_STEPS = 8


@dataclass(frozen=True)
class Measured:
    """One strategy, or the peer, in one group. Seconds are of a step."""

    system: str
    seconds: Spread
    simulated: float | None
    """Seconds that a run is predicted to take; None for the peer."""
    planned: float | None
    """Seconds that `edge-agent plan --strategy` says. For flow it chooses the slices and messages, which in a run are fixed."""


@dataclass(frozen=True)
class MeasuredGroup:
    """Measurements of one group, in one run."""

    layers: Layers
    members: int
    rows: Sequence[Measured]

    @property
    def bound_seconds(self) -> float:
        """Return the least seconds of a step that any exchange could have."""
        return bound_seconds(self.layers)

    @property
    def medians(self) -> Mapping[str, float]:
        """Seconds of a step, by strategy and peer."""
        return {row.system: row.seconds.median for row in self.rows}


def measure_group(
    layers: Layers,
    members: int,
    strategies: Sequence[str],
    peers: Sequence[float] = (),
    rounds: int = 1,
    foreign: Mapping[ForeignPeer, Path] = {},
    codecs: Sequence[str] = ("raw",),
) -> MeasuredGroup:
    """Measure strategies and peers in turn, so many times.

    peers: sizes of buckets, in megabytes. foreign: peers that are measured too, and a Python for each. codecs: of gradients and
    of weights, by each of which each strategy is measured.
    """
    steps = WARM_UP_STEPS + 2 + TIMED_STEPS
    seconds: dict[str, list[float]] = {}

    def note(system: str, found: list[float]) -> None:
        print(f"{layers.model}, {system}: {Spread.of(found).show(1.0, 3)} s", file=sys.stderr, flush=True)
        seconds.setdefault(system, []).extend(found)

    with (
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        sleeping_group(layers, members, Path(folder)) as group,
    ):
        machines = [group.mesh.machines[name] for name in group.members]
        hub = group.mesh.machines[TRAINER]
        for _ in range(rounds):
            for strategy, codec in product(strategies, codecs):
                note(coded_name(strategy, codec), group.step_seconds(strategy, steps, codec))
            for megabytes in peers:
                training = Training(amounts(layers), layers.bytes, members, steps, BATCH, megabytes)
                wrappers = [machine.command([]) for machine in machines]
                found = ddp_step_seconds(training, machines[0].address, wrappers, WARM_UP_STEPS)
                note(peer_name(megabytes), found)
            for peer, python in foreign.items():
                note(peer.name, foreign_step_seconds(peer, python, layers, hub, machines, TIMED_STEPS))
    rows = [
        Measured(
            system,
            Spread.of(taken),
            simulated_seconds(system, layers) if system in STRATEGIES else None,
            STRATEGIES[system](layers).step_seconds if system in STRATEGIES else None,
        )
        for system, taken in seconds.items()
    ]
    return MeasuredGroup(layers, members, rows)


def coded_name(strategy: str, codec: str) -> str:
    """Name a strategy by a codec both ways."""
    return strategy if codec == "raw" else f"{strategy}, {codec} both ways"


def peer_name(megabytes: float) -> str:
    """The name of the peer with buckets of this size."""
    return f"DDP, {megabytes:g} MB"


def simulated_seconds(strategy: str, layers: Layers) -> float:
    """Seconds that a step of a run takes in the simulator, which by flow has the slices of the run."""
    return run_seconds(layers) if strategy == FLOW else STRATEGIES[strategy](layers).step_seconds


def measured_table(group: MeasuredGroup, title: str) -> Table:
    """A row for each strategy and peer."""
    up, down = rates(group.layers)
    computing = sum(group.layers.forward_seconds) + sum(group.layers.backward_seconds)
    caption = (
        f"{title}: {group.members} member{'s' * (group.members > 1)}, {computing:.2f} s of computing, "
        f"{sum(group.layers.bytes) / 1e6:.3g} MB at {up / 1e6:.0f} / {down / 1e6:.0f} Mbit/s; bound {group.bound_seconds:.3f} s"
    )
    heads = ("", "s a step, median (quartiles)", "over the bound", "simulated", "measured over it", "schedule says")
    table = Table(*heads, title=caption, title_justify="left")
    for row in group.rows:
        median = row.seconds.median
        simulated = ("", "", "")
        if row.simulated is not None and row.planned is not None:
            simulated = f"{row.simulated:.3f}", f"{median / row.simulated:.3f}", f"{row.planned:.3f}"
        table.add_row(row.system, row.seconds.show(1.0, 3), f"{median / group.bound_seconds:.3f}", *simulated)
    return table
