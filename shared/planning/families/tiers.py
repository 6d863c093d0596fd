"""Three tiers: layers and samples divided together (paper 004). A step costs what the simulator says.

Where all divisions are few, they are simulated in the order of their bounds until no other can be better: the best is the best
of all. Where they are many, a grid of them leads to the divisions of the least bounds, and these to the best that is near them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shared.errors import PlanError
from shared.planning.cost import Conditions, Loads, Simulated
from shared.planning.families.divisions import Division, layout_of_division
from shared.planning.families.hiertrain import hiertrain
from shared.planning.families.question import Question
from shared.planning.families.tier_baselines import baselines
from shared.planning.families.tier_bounds import Bounds, Divisions, joined
from shared.planning.families.tier_lists import Choices, keys, lowest
from shared.planning.layout import Layout
from shared.planning.measurements import FLOAT32_BITS, Floats, Ints
from shared.planning.profile_operations import coded
from shared.planning.space import check_staleness, check_widths

MOST_LISTED = 400_000
"""Divisions that are few enough for a bound of each."""
MOST_SIMULATED = 120
"""Divisions that are simulated where not all are listed."""
GRID_CUTS, GRID_SHARES = 12, 8
"""Cuts and shares of the grid where not all are listed."""
STARTS, DESCENTS = 24, 24
"""Divisions of the grid from which it goes down along the bounds, and most steps of that."""
ROUNDING = 1e-9
"""Part of the seconds of a step by which a bound may exceed it, because sums are rounded."""


@dataclass(frozen=True)
class TierFound:
    """The best division, and how it was found."""

    division: Division
    layout: Layout
    seconds: float
    simulated: int
    """Number of divisions that were simulated."""
    proved: bool
    """True if no division is better."""


def is_for(question: Question) -> bool:
    """See `Family.is_for`."""
    return question.is_tiers


def listed(question: Question) -> tuple[list[Layout], Loads] | None:  # noqa: ARG001 - they are always too many
    """Return None: divisions are too many to be weighed all the time."""
    return None


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield the best. PlanError where nothing may be chosen."""
    found = search(question, at)
    yield found.seconds, found.layout


def search(question: Question, at: Conditions) -> TierFound:
    """Find the division of the fewest seconds a step. PlanError where nothing may be chosen.

    Of equals, the first of the least bound. Where not all are listed, what the other planners choose is tried first.
    """
    return _Search(question, at).run()


class _Search:
    def __init__(self, question: Question, at: Conditions) -> None:
        profile, space = question.profile, question.space
        check_staleness(space.staleness)
        check_widths(space.bits)
        self._profile, self._staleness = profile, space.staleness or 0
        self.choices = Choices(question, widths_of(question))
        self._bounds = Bounds(profile, at, self._staleness)
        self._simulated = Simulated(profile, at)
        self._known: dict[bytes, float] = {}
        self._best: tuple[Divisions, float] | None = None

    def run(self) -> TierFound:
        """Search, and return the best."""
        choices = self.choices
        few = choices.count() * len(choices.widths) ** 3 <= MOST_LISTED
        if few:
            every = choices.listed(range(choices.first_cut, choices.blocks + 1), range(1, choices.batch_size + 1))
            self._try_rising(every, self._bounds.seconds(every), every.rows)
        else:
            for one in self._planned():
                self._try(one)
            every = self._descended()
            self._try_rising(every, self._bounds.seconds(every), MOST_SIMULATED // 2)
            self._improve()
        if self._best is None:
            raise PlanError(
                f"no division of {choices.batch_size} samples among {', '.join(self._profile.names)} may be chosen; permit "
                "raw samples to a trainer, or the device alone"
            )
        division = self._best[0].division(0, self._profile.names)
        return TierFound(division, self._layout(self._best[0]), self._best[1], len(self._known), few)

    def _planned(self) -> Iterator[Divisions]:
        """Yield what the other planners choose."""
        if FLOAT32_BITS in self.choices.widths and (phased := hiertrain(self._bounds, self.choices)) is not None:
            yield phased[0]
        yield from (found for _, found in baselines(self._bounds, self.choices))

    def _try_rising(self, of: Divisions, bounds: Floats, most: int) -> None:
        """Simulate divisions in the order of their bounds until no other can be better, or as many as that."""
        for row in lowest(bounds, most):
            if self._best is not None and bounds[row] * (1.0 - ROUNDING) >= self._best[1]:
                break
            self._try(of.take(np.array([row])))

    def _try(self, one: Divisions) -> None:
        (key,) = keys(one)
        if key not in self._known:
            self._known[key] = self._simulated.seconds(coded(self._profile, self._layout(one)))
            if self._best is None or self._known[key] < self._best[1]:
                self._best = one, self._known[key]

    def _layout(self, one: Divisions) -> Layout:
        return layout_of(one, self._profile.names, len(self._profile), self._profile.batch_size, self._staleness)

    def _descended(self) -> Divisions:
        """Return divisions of small bounds: those of a grid, and those that follow from the best of it step by step."""
        choices = self.choices
        cuts = np.unique(np.linspace(choices.first_cut, choices.blocks, GRID_CUTS).round().astype(int)).tolist()
        shares = np.unique(np.linspace(0, choices.batch_size, GRID_SHARES + 1).round().astype(int))[1:].tolist()
        uniform = [choices.only(width).listed(cuts, shares) for width in choices.widths]
        grid = joined(uniform)
        seconds = self._bounds.seconds(grid)
        now = grid.take(self._spread(grid, seconds))
        visited = [now]
        before = self._bounds.seconds(now)
        for _ in range(DESCENTS):
            others = choices.neighbours(now)
            each = self._bounds.seconds(others)
            pool, bounds = joined([now, others]), np.concatenate([before, each])
            rows = self._spread(pool, bounds)
            now, after = pool.take(rows), bounds[rows]
            visited.append(now)
            if len(after) == len(before) and (after >= before * (1 - 1e-4)).all():
                break
            before = after
        return joined(visited)

    def _spread(self, of: Divisions, seconds: Floats) -> Ints:
        """Return the rows of the least bounds, at most so many of each order of roles that are present."""
        kinds = of.original * 100 + np.where(of.short_samples > 0, of.short + 1, 0) * 10
        kinds = kinds + np.where(of.long_samples > 0, of.long + 1, 0)
        groups = np.unique(kinds)
        most = max(2, STARTS // len(groups))
        found = []
        for kind in groups:
            rows = np.flatnonzero(kinds == kind)
            rows = rows[np.argsort(seconds[rows], kind="stable")]
            taken = dict[bytes, int]()
            for row, key in zip(rows[: 8 * most], keys(of.take(rows[: 8 * most])), strict=True):
                taken.setdefault(key, row)
            found += list(taken.values())[:most]
        return np.array(found)

    def _improve(self) -> None:
        """Go to the best neighbour as long as there is a better one, within the budget."""
        while self._best is not None and len(self._known) < MOST_SIMULATED:
            start = self._best
            others = self.choices.neighbours(start[0])
            bounds = self._bounds.seconds(others)
            for row in lowest(bounds, others.rows):
                if bounds[row] >= self._best[1] or len(self._known) >= MOST_SIMULATED or self._best is not start:
                    break
                self._try(others.take(np.array([row])))
            if self._best is start:
                return


def layout_of(one: Divisions, names: Sequence[str], blocks: int, batch_size: int, staleness: int) -> Layout:
    """Return the layout of a single row."""
    widths = {
        (names[near], names[far]): int(one.widths[0, near, far])
        for near in range(3)
        for far in range(3)
        if one.widths[0, near, far] < FLOAT32_BITS
    }
    return layout_of_division(one.division(0, tuple(names)), blocks, batch_size, names[0], staleness, widths)


def widths_of(question: Question) -> tuple[int, ...]:
    """Return the permitted widths of which the profile has a codec, many bits first. PlanError if there is none."""
    costs = question.profile.by_samples
    assert costs is not None
    widths = tuple(sorted(costs.widths.intersection(question.space.bits), reverse=True))
    if not widths:
        asked = ", ".join(map(str, question.space.bits))
        raise PlanError(
            f"the profile has no codec of {asked} bits; its codecs have {', '.join(map(str, sorted(costs.widths)))}; allow one "
            "of these, or measure others"
        )
    return widths
