"""Placements that are tried in a setting of devices and links, in turn, and what was measured of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tiers.fewer import best_of_fewer
from benchmarks.tiers.measured import Bench, Measured, question_of
from edge_agent.planner_names import BEST, HIERTRAIN
from edge_agent.planning import Profile, planned
from edge_agent.planning.profile_operations import coded
from shared.placement import Placement

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

    def placed(planner: str, staleness: int = 0) -> Placement:
        return coded(profile, planned(question_of(profile, staleness, inputs_to), planner).layout)

    named = {
        BEST: placed(BEST),
        FEWER: best_of_fewer(profile, frozenset(inputs_to)).placement,
        **{name: placed(name) for name in (HIERTRAIN, "jointdnn+", "all-device")},
        ONE_BEHIND: placed(BEST, 1),
    }
    found: dict[str, Placement] = {}
    for name, placement in named.items():
        if placement not in found.values():
            found[name] = placement
    return found


def in_turn(
    setting: str, running: Bench, placements: Mapping[str, Placement], seconds: float, repeats: int
) -> Iterator[Tried]:
    """Measure placements in a setting; they take turns. Yields each as soon as it has had its last."""
    taken: dict[str, list[float]] = {name: [] for name in placements}
    for turn in range(1, repeats + 1):
        for name, placement in placements.items():
            taken[name] += running.stretches(placement, seconds)
            if turn == repeats:
                yield Tried(setting, name, running.measured(placement, taken[name]))


def kept_with(path: Path | None, measured: Iterable[Tried]) -> list[Tried]:
    """Return the rows of a file with those that are measured now, which replace older ones. The file has each at once."""
    rows = {(one.setting, one.name): one for one in kept_in(path)}
    for one in measured:
        rows[one.setting, one.name] = one
        if path is not None:
            path.write_text("".join(json.dumps(each.document()) + "\n" for each in rows.values()))
    return list(rows.values())


def kept_in(path: Path | None) -> list[Tried]:
    """Return the rows in a file; none where there is no file."""
    if path is None or not path.is_file():
        return []
    documents = map(json.loads, path.read_text().splitlines())
    return [Tried(one["setting"], one["name"], Measured.of(one)) for one in documents]
