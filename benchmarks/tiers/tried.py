"""Placements that are tried in a setting of devices and links, in turn, and what was measured of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tiers.fewer import best_of_fewer
from benchmarks.tiers.measured import Bench, Measured, planner_of
from shared.placement import Placement
from shared.planner_names import BEST, HIERTRAIN
from shared.planning import Profile

FEWER, ONE_BEHIND = "fewer workers", "best, K = 1"


@dataclass(frozen=True)
class Tried:
    """A placement that was measured in a setting."""

    setting: str
    name: str
    found: Measured

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"setting": self.setting, "name": self.name, **self.found.document()}


def placements_of(profile: Profile, inputs_to: Sequence[str]) -> dict[str, Placement]:
    """Return what is tried in a setting, each placement once."""
    planner = planner_of(profile, 0, inputs_to)
    named = {
        BEST: planner.plan(BEST).placement,
        FEWER: best_of_fewer(profile, frozenset(inputs_to)).placement,
        **{name: planner.plan(name).placement for name in (HIERTRAIN, "jointdnn+", "all-device")},
        ONE_BEHIND: planner_of(profile, 1, inputs_to).plan(BEST).placement,
    }
    found: dict[str, Placement] = {}
    for name, placement in named.items():
        if placement not in found.values():
            found[name] = placement
    return found


def in_turn(
    setting: str, running: Bench, placements: Mapping[str, Placement], seconds: float, repeats: int
) -> list[Tried]:
    """Measure placements in a setting; they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in placements}
    for _ in range(repeats):
        for name, placement in placements.items():
            taken[name] += running.stretches(placement, seconds)
    return [Tried(setting, name, running.measured(placement, taken[name])) for name, placement in placements.items()]


def kept_in(path: Path | None) -> list[Tried]:
    """Return the rows in a file; none where there is no file."""
    if path is None or not path.is_file():
        return []
    documents = map(json.loads, path.read_text().splitlines())
    return [Tried(one["setting"], one["name"], Measured.of(one)) for one in documents]


def keep(path: Path | None, tried: Sequence[Tried]) -> None:
    """Write the rows to a file, where there is to be one."""
    if path is not None:
        path.write_text("".join(json.dumps(one.document()) + "\n" for one in tried))
