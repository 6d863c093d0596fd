"""Three tiers as measured, whose blocks compute on shares of a core: `python -m benchmarks.tiers shares [CASE ...]`.

In each case the agent measures the profile of its machines first, plans by it, and then the placements take turns. Needs root.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from rich.console import Console

from benchmarks.support.machine import machine
from benchmarks.tiers.measured import Bench, line, permission
from benchmarks.tiers.settings import NAMES, TRIPS
from benchmarks.tiers.tables import Kind, tables
from benchmarks.tiers.tried import Tried, in_turn, kept_with, placements_of
from edge_agent.planning import load_profile
from shared.bounds import SAMPLES_AHEAD

REPEATS = 6
"""Steps of each block at each size that the profile times, at least."""
FLAGS = (
    'model.factory="benchmarks.tiers.convolutions:convolutions"',
    'data.train={factory="benchmarks.networks:RandomImages", kwargs={samples=320000}}',
    "data.batch_size=32",
    f"data.ahead={SAMPLES_AHEAD}",
    "training.epochs=1000",
    "training.evaluate_every_epochs=0",
    permission(NAMES[1:]),
)
"""An agent's, for the profile and for every run."""


@dataclass(frozen=True)
class Setting:
    """The machines of a case. Their shares leave enough of two cores for the kernel, and for the relays of round trips."""

    what: str
    shares: tuple[float, float, float]
    """Shares of a core, by worker."""
    near_mbit: float
    far_mbit: float
    inputs_to: tuple[str, ...] = NAMES[1:]


SETTINGS: Mapping[str, Setting] = {
    "alike": Setting("all alike, quick links", (0.45, 0.45, 0.45), 80.0, 40.0),
    "stay": Setting("3 : 5 : 6, quick links, inputs stay", (0.3, 0.5, 0.6), 80.0, 40.0, ()),
    "uneven": Setting("3 : 5 : 6, quick links", (0.3, 0.5, 0.6), 80.0, 40.0),
    "slow": Setting("3 : 5 : 6, slow far link", (0.3, 0.5, 0.6), 40.0, 4.0),
}
COMPUTING = Kind(
    "compute", {name: setting.what for name, setting in SETTINGS.items()}, median=0.10, worst=0.20, gain=0.95
)


def shares(arguments: argparse.Namespace) -> None:
    """Measure cases and print the tables of all that is kept."""
    cases = (
        measure(name, arguments.seconds, arguments.repeats, arguments.profiles) for name in arguments.cases or SETTINGS
    )
    tried = kept_with(arguments.keep, chain.from_iterable(cases))
    console = Console(width=130)
    console.print(machine())
    for table in tables(tried, COMPUTING):
        console.print(table)


def measure(name: str, seconds: float, repeats: int, profiles: Path | None = None) -> Iterator[Tried]:
    """Measure the profile of a setting, and what is tried there. profiles: the folder of those that are measured already."""
    setting = SETTINGS[name]
    hops = list(pairwise(NAMES))
    rates = dict(zip(hops, ((1e6 * mbit,) * 2 for mbit in (setting.near_mbit, setting.far_mbit)), strict=True))
    of_cores = dict(zip(NAMES, setting.shares, strict=True))
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        line(Path(folder), NAMES, dict(zip(hops, TRIPS, strict=True)), rates, of_cores) as machines,
    ):
        path = (profiles or Path(folder)).absolute() / f"{name}.json"
        if not path.exists():
            machines.profile(FLAGS, path, REPEATS)
        profile = replace(load_profile(path), samples_ahead=SAMPLES_AHEAD)
        placements = placements_of(profile, setting.inputs_to)
        yield from in_turn(name, Bench(profile, machines, FLAGS), placements, seconds, repeats)
