"""Three tiers as measured, beside the simulator and Eq. 12: `python -m benchmarks.tiers links [CASE ...]`.

A case is a setting of devices and links in which several placements take turns; overlap: an exchange as long as computing.
Blocks sleep. Needs root.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from rich.console import Console

from benchmarks.support.machine import machine
from benchmarks.tiers.measured import bench
from benchmarks.tiers.settings import BACKWARD, BATCH, BLOCK_SECONDS, NAMES, SETTINGS, profile_of
from benchmarks.tiers.tables import Kind, tables
from benchmarks.tiers.tried import Tried, in_turn, kept_with, placements_of
from edge_agent.planning import Profile
from shared.placement import Placement, Rows, Source, Tile

OVERLAP = "overlap"
CASES = (*SETTINGS, OVERLAP)
SLEEPING = Kind("sleep", {name: setting.what for name, setting in SETTINGS.items()}, median=0.05, worst=0.10, gain=0.90)


def links(arguments: argparse.Namespace) -> None:
    """Measure cases and print the tables of all that is kept."""
    cases = (
        (overlap if name == OVERLAP else partial(measure, name))(arguments.seconds, arguments.repeats)
        for name in arguments.cases or CASES
    )
    tried = kept_with(arguments.keep, chain.from_iterable(cases))
    console = Console(width=130)
    console.print(machine())
    for table in tables(tried, SLEEPING):
        console.print(table)


def measure(name: str, seconds: float, repeats: int) -> Iterator[Tried]:
    """Measure what is tried in a setting; the placements take turns."""
    setting = SETTINGS[name]
    profile = setting.profile()
    return _sleeping(name, profile, placements_of(profile, setting.inputs_to), seconds, repeats)


def overlap(seconds: float, repeats: int) -> Iterator[Tried]:
    """Measure two workers that share all blocks, whose exchange takes as long as computing, or both ways together do."""
    for what, ways in (("each way", 1.0), ("both ways", 2.0)):
        profile = halves_profile(ways)
        yield from _sleeping(OVERLAP, profile, {what: halves(len(profile))}, seconds, repeats)


def halves_profile(ways: float, blocks: int = 12, mbit: float = 20.0) -> Profile:
    """Return the profile of a model whose weights take as long one way as half of a batch computes, over so many ways."""
    seconds = blocks * (1.0 + BACKWARD) * (BLOCK_SECONDS + BATCH / 2 * 0.00125)
    return profile_of(
        (0.00125, 0.00125, 0.00125),
        mbit,
        mbit,
        (4096,) + (1024,) * (blocks - 1) + (40,),
        (mbit * 1e6 / 8 * seconds / ways / blocks,) * blocks,
    )


def halves(blocks: int) -> Placement:
    """Return the placement in which the device and the edge server have half of a batch each, and the latter the weights."""
    half = BATCH // 2
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=BATCH,
        workers=NAMES,
        tiles=(Tile(NAMES[0], 0, blocks, Rows(0, half)), Tile(NAMES[1], 0, blocks, Rows(half, BATCH))),
        sources=(Source(NAMES[0], Rows(0, BATCH)),),
        owners=dict.fromkeys(range(blocks), NAMES[1]),
    )


def _sleeping(
    setting: str, profile: Profile, placements: Mapping[str, Placement], seconds: float, repeats: int
) -> Iterator[Tried]:
    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder, bench(Path(folder), profile) as running:
        yield from in_turn(setting, running, placements, seconds, repeats)
