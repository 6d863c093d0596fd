"""Three tiers as measured, beside the simulator and Eq. 12: `python -m benchmarks.tiers links [CASE ...]`.

A case is a setting of devices and links in which several placements take turns; overlap: an exchange as long as computing.
Blocks sleep. Needs root.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.support.machine import machine
from benchmarks.tiers.fewer import best_of_fewer
from benchmarks.tiers.measured import Bench, Measured, bench, planner_of
from shared.bounds import SAMPLES_AHEAD
from shared.placement import Placement, Rows, Source, Tile
from shared.planner_names import BEST, HIERTRAIN
from shared.planning import Profile, parse_profile
from shared.planning.profile.tiers_v1 import SCHEMA

NAMES = ("edge", "near", "gpu")
BATCH, BLOCKS = 32, 5
FEATURE_BYTES = (12288, 16384, 8192, 4096, 2048, 40)
WEIGHT_BYTES = (10_000, 40_000, 100_000, 200_000, 400_000)
BLOCK_SECONDS, BACKWARD = 0.001, 2.0
"""Seconds of a forward beside its samples, and of a backward for each second of a forward."""
TRIPS = (0.004, 0.03)
"""Seconds there and back on the two links."""
MESSAGE_SECONDS = 0.0015
FEWER, ONE_BEHIND = "fewer workers", "best, K = 1"
MEDIAN_GOAL, WORST_GOAL, GAIN_PREDICTED, GAIN_GOAL, BEST_GOAL, OVERLAP_GOAL = 0.05, 0.10, 0.87, 0.90, 1.05, 1.1


@dataclass(frozen=True)
class Setting:
    """The machines of a case."""

    what: str
    sample_seconds: tuple[float, float, float]
    """Seconds of a sample's forward through a block, by worker."""
    near_mbit: float
    far_mbit: float
    inputs_to: tuple[str, ...] = NAMES[1:]

    def profile(self) -> Profile:
        """Return the profile of the sleeping model there."""
        return profile_of(self.sample_seconds, self.near_mbit, self.far_mbit)


SETTINGS: Mapping[str, Setting] = {
    "alike": Setting("all alike, quick links", (0.002, 0.002, 0.002), 80.0, 40.0),
    "stay": Setting("4 : 6 : 8, quick links, inputs stay", (0.0025, 0.00167, 0.00125), 80.0, 40.0, ()),
    "shares": Setting("4 : 6 : 8, quick links", (0.0025, 0.00167, 0.00125), 80.0, 40.0),
    "cloud": Setting("1 : 3 : 9, slow links", (0.0025, 0.0008, 0.00028), 40.0, 10.0),
    "slow": Setting("4 : 6 : 8, slow far link", (0.0025, 0.00167, 0.00125), 40.0, 4.0),
}


@dataclass(frozen=True)
class Tried:
    """A placement that was measured in a setting."""

    setting: str
    name: str
    found: Measured

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"setting": self.setting, "name": self.name, **self.found.document()}


def profile_of(
    sample_seconds: Sequence[float],
    near_mbit: float,
    far_mbit: float,
    feature_bytes: Sequence[float] = FEATURE_BYTES,
    weight_bytes: Sequence[float] = WEIGHT_BYTES,
    trips: tuple[float, float] = TRIPS,
) -> Profile:
    """Return the profile of the sleeping model."""
    document = profile_document(sample_seconds, near_mbit, far_mbit, feature_bytes, weight_bytes, trips)
    return replace(parse_profile(document, "sleeping"), samples_ahead=SAMPLES_AHEAD)


def profile_document(
    sample_seconds: Sequence[float],
    near_mbit: float,
    far_mbit: float,
    feature_bytes: Sequence[float] = FEATURE_BYTES,
    weight_bytes: Sequence[float] = WEIGHT_BYTES,
    trips: tuple[float, float] = TRIPS,
) -> dict[str, Any]:
    """Return the same as a file has it."""
    count, through = len(weight_bytes), min(near_mbit, far_mbit)
    return {
        "schema": SCHEMA,
        "model": "sleeping",
        "batch_size": BATCH,
        "input_bytes": feature_bytes[0],
        "label_bytes": 1,
        "blocks": [{"name": f"b{index}", "bytes": size, "min_samples": 1} for index, size in enumerate(weight_bytes)],
        "feature_bytes": list(feature_bytes),
        "workers": [
            {
                "name": name,
                "forward": [[BLOCK_SECONDS, each]] * count,
                "backward": [[BACKWARD * BLOCK_SECONDS, BACKWARD * each]] * count,
                "update": [0.0] * count,
            }
            for name, each in zip(NAMES, sample_seconds, strict=True)
        ],
        "links": [
            _link(NAMES[0], NAMES[1], near_mbit, trips[0]),
            _link(NAMES[1], NAMES[2], far_mbit, trips[1]),
            _link(NAMES[0], NAMES[2], through, sum(trips)),
        ],
        "shared_segments": [[0, 2], [1, 2]],
        "message": [MESSAGE_SECONDS, 0.0],
    }


def _link(near: str, far: str, mbit: float, trip_seconds: float) -> dict[str, Any]:
    return {"between": [near, far], "up": mbit * 1e6, "down": mbit * 1e6, "round_trip_seconds": trip_seconds}


def placements_of(setting: Setting) -> dict[str, Placement]:
    """Return what is tried in a setting, each placement once."""
    profile = setting.profile()
    planner = planner_of(profile, 0, setting.inputs_to)
    named = {
        BEST: planner.plan(BEST).placement,
        FEWER: best_of_fewer(profile, frozenset(setting.inputs_to)).placement,
        **{name: planner.plan(name).placement for name in (HIERTRAIN, "jointdnn+", "all-device")},
        ONE_BEHIND: planner_of(profile, 1, setting.inputs_to).plan(BEST).placement,
    }
    found: dict[str, Placement] = {}
    for name, placement in named.items():
        if placement not in found.values():
            found[name] = placement
    return found


OVERLAP = "overlap"
CASES = (*SETTINGS, OVERLAP)


def links(arguments: argparse.Namespace) -> None:
    """Measure cases and print the tables of all that is kept."""
    tried = {(one.setting, one.name): one for one in kept_in(arguments.keep)}
    for name in arguments.cases or CASES:
        found = (overlap if name == OVERLAP else partial(measure, name))(arguments.seconds, arguments.repeats)
        tried |= {(one.setting, one.name): one for one in found}
        if arguments.keep is not None:
            arguments.keep.write_text("".join(json.dumps(one.document()) + "\n" for one in tried.values()))
    console = Console(width=130)
    console.print(machine())
    for table in tables([*tried.values()]):
        console.print(table)


def kept_in(path: Path | None) -> list[Tried]:
    """Return the rows in a file; none where there is no file."""
    if path is None or not path.is_file():
        return []
    documents = map(json.loads, path.read_text().splitlines())
    return [Tried(one["setting"], one["name"], Measured.of(one)) for one in documents]


def tables(tried: Sequence[Tried]) -> Iterator[Table]:
    """Yield the tables of what was measured."""
    yield steps_table(tried)
    yield errors_table(tried)
    if settled := [one for one in tried if one.setting in SETTINGS]:
        yield gains_table(settled)
    if exchanged := [one for one in tried if one.setting not in SETTINGS]:
        yield overlap_table(exchanged)


def measure(name: str, seconds: float, repeats: int) -> list[Tried]:
    """Measure what is tried in a setting; the placements take turns."""
    setting = SETTINGS[name]
    return _in_turn(name, setting.profile(), placements_of(setting), seconds, repeats)


def overlap(seconds: float, repeats: int) -> list[Tried]:
    """Measure two workers that share all blocks, whose exchange takes as long as computing, or both ways together do."""
    found = []
    for what, ways in (("each way", 1.0), ("both ways", 2.0)):
        profile = halves_profile(ways)
        found += _in_turn(OVERLAP, profile, {what: halves(len(profile))}, seconds, repeats)
    return found


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


def _in_turn(
    setting: str, profile: Profile, placements: Mapping[str, Placement], seconds: float, repeats: int
) -> list[Tried]:
    taken: dict[str, list[float]] = {name: [] for name in placements}
    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder, bench(Path(folder), profile) as running:
        for _ in range(repeats):
            for name, placement in placements.items():
                taken[name] += running.stretches(placement, seconds)
        return list(_found(setting, running, placements, taken))


def _found(
    setting: str, running: Bench, placements: Mapping[str, Placement], taken: Mapping[str, Sequence[float]]
) -> Iterator[Tried]:
    for name, placement in placements.items():
        yield Tried(setting, name, running.measured(placement, taken[name]))


def steps_table(tried: Sequence[Tried]) -> Table:
    """Tabulate each step as measured, as simulated and in phases."""
    table = Table(
        *("setting", "placement", "step, ms", "simulated", "error", "Eq. 12", "error"),
        title="blocks sleep; steps of placements of three tiers",
    )
    for one in tried:
        found = one.found
        phased = ("", "") if found.eq12 is None else (f"{found.eq12 * 1e3:.0f}", f"{found.eq12_error:+.1%}")
        table.add_row(
            one.setting,
            one.name,
            found.seconds.show(1e3, 0),
            f"{found.predicted * 1e3:.0f}",
            f"{found.error:+.1%}",
            *phased,
        )
    return table


def errors_table(tried: Sequence[Tried]) -> Table:
    """Tabulate the errors of all cases together."""
    simulated = [abs(one.found.error) for one in tried]
    phased = [abs(error) for one in tried if (error := one.found.eq12_error) is not None]
    table = Table("", "cases", "median error", "worst error", "", title=f"goal: {MEDIAN_GOAL:.0%} and {WORST_GOAL:.0%}")
    kept = median(simulated) <= MEDIAN_GOAL and max(simulated) <= WORST_GOAL
    for name, errors, verdict in (("simulator", simulated, "" if kept else "MISSED"), ("Eq. 12", phased, "")):
        table.add_row(name, str(len(errors)), f"{median(errors):.1%}", f"{max(errors):.1%}", verdict)
    return table


def gains_table(tried: Sequence[Tried]) -> Table:
    """Tabulate the best placement beside that of fewer workers, and beside the best that was measured, where K = 0."""
    table = Table(
        *("setting", "best / fewer, simulated", "measured", "best / best measured", ""),
        title=(
            f"goals: {GAIN_GOAL:g} measured where {GAIN_PREDICTED:g} is simulated, and elsewhere {BEST_GOAL:g} of the best "
            "that was measured"
        ),
    )
    for setting in dict.fromkeys(one.setting for one in tried):
        found = {one.name: one.found for one in tried if one.setting == setting and one.name != ONE_BEHIND}
        best = found[BEST]
        fewer = found.get(FEWER, best)
        predicted, measured = best.predicted / fewer.predicted, best.seconds.median / fewer.seconds.median
        beside = best.seconds.median / min(each.seconds.median for each in found.values())
        kept = measured <= GAIN_GOAL if predicted <= GAIN_PREDICTED else beside <= BEST_GOAL
        table.add_row(
            SETTINGS[setting].what, f"{predicted:.2f}", f"{measured:.2f}", f"{beside:.2f}", "" if kept else "MISSED"
        )
    return table


def overlap_table(tried: Sequence[Tried]) -> Table:
    """Tabulate the steps in which weights are exchanged for as long as workers compute."""
    table = Table(
        *("exchange as long as computing", "step, ms", "simulated", "measured / simulated", ""),
        title=f"two workers share all blocks, K = 0; goal: {OVERLAP_GOAL:g}",
    )
    for one in tried:
        ratio = one.found.seconds.median / one.found.predicted
        table.add_row(
            one.name,
            one.found.seconds.show(1e3, 0),
            f"{one.found.predicted * 1e3:.0f}",
            f"{ratio:.2f}",
            "" if ratio <= OVERLAP_GOAL else "MISSED",
        )
    return table
