"""Three tiers: layers and samples divided together (paper 004). A step costs what the simulator says.

Where all divisions are few, they are simulated in the order of their bounds until no other can be better: the best is the best
of all. Where they are many, a grid of them leads to the divisions of the least bounds, and these to the best that is near them.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edge_agent.planning.cost import Conditions, Loads, simulated_seconds
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices, lowest
from edge_agent.planning.families.tiers.columns import (
    Divisions,
    canonical,
    columns_of,
    joined,
    keys,
    kinds_of,
    layout_of,
    structures,
)
from edge_agent.planning.families.tiers.divisions import divisions_of
from edge_agent.planning.families.tiers.formulas import baselines
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS, Floats, Ints
from edge_agent.planning.papers.hiertrain import hiertrain
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile_operations import coded
from edge_agent.planning.space import check_staleness, check_widths
from shared.errors import PlanError

MOST_LISTED = 400_000
"""Divisions that are few enough for a bound of each."""
LEAST_SIMULATED, BLOCKS_SIMULATED = 60, 3000
"""Divisions that are simulated where not all are listed: the first, and as many more as have so many blocks together."""
GRID_CUTS, GRID_SHARES = 12, 8
"""Cuts and shares of the grid where not all are listed."""
STRUCTURES = 1000
"""Roles, cuts and widths whose shares are looked for."""
SHARE_STEPS = (16, 16, 8, 8, 4, 4, 2, 2, 1, 1, 1)
"""Samples by which shares change in turn."""
IMPROVED, NEIGHBOURS_SIMULATED, NEIGHBOURS_LISTED = 8, 16, 1000
"""Divisions whose neighbours are simulated, and most of these at a time, for all of them and at last for the best."""
STARTS, DESCENTS = 32, 24
"""Divisions from which it goes down along the bounds, and most steps of that."""
LEAST_NEIGHBOURS, BLOCKS_OF_NEIGHBOURS = 4, 80
"""Neighbours of a division for the engine: the first, and as many more as have so many blocks together."""
ROUNDING = 1e-9
"""Part of the seconds of a step by which a bound may exceed it, because sums are rounded."""


def is_for(question: Question) -> bool:
    """See `Family.is_for`."""
    return question.is_tiers


def listed(question: Question) -> tuple[list[Layout], Loads] | None:  # noqa: ARG001 - they are always too many
    """Return None: divisions are too many to be weighed all the time."""
    return None


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield the best with each K that may be the best. PlanError where nothing may be chosen."""
    spaces = [replace(question.space, staleness=staleness) for staleness in _choices_of_staleness(question)]
    found = [search(replace(question, space=space), at) for space in spaces]
    yield from ((one.seconds_per_step, one.layout) for one in sorted(found, key=lambda one: one.seconds_per_step))


def permits(question: Question, layout: Layout) -> bool:
    """Tell whether a layout is a division that may be chosen."""
    return layout.staleness in _choices_of_staleness(question) and _columns(question, layout) is not None


def neighbours(question: Question, layout: Layout, at: Conditions) -> Iterator[Layout]:
    """Yield the same division with another K, and the divisions of the least bounds of those that differ in one cut, width or
    share; of another layout, none."""
    columns = _columns(question, layout)
    if columns is None:
        return
    for staleness in _choices_of_staleness(question):
        if staleness != layout.staleness:
            yield replace(layout, staleness=staleness)
    profile, choices = question.profile, Choices(question)
    others = choices.neighbours(columns)
    bounds, seen = Bounds(profile, at, layout.staleness).seconds(others), {layout}
    for row in lowest(bounds, others.rows):
        one = others.take(np.array([row]))
        other = layout_of(one, profile.names, len(profile), profile.batch_size, layout.staleness)
        if other not in seen:
            seen.add(other)
            yield other
        if len(seen) > LEAST_NEIGHBOURS + BLOCKS_OF_NEIGHBOURS // len(profile):
            break


def _columns(question: Question, layout: Layout) -> Divisions | None:
    """Return a layout as a division that may be chosen, whatever its K, as the only row; None if it is none."""
    profile = question.profile
    if not set(layout.workers) <= set(profile.names):
        return None
    choices, widths = Choices(question), np.full((1, 3, 3), FLOAT32_BITS)
    for route, bits in layout.widths:
        widths[0, profile.names.index(route.sender), profile.names.index(route.receiver)] = bits
    for division in divisions_of(layout.placement(profile.names), profile.names):
        columns = columns_of(division, profile.names)._replace(widths=widths)
        if choices.allows(columns).all():
            return columns
    return None


def _choices_of_staleness(question: Question) -> tuple[int, ...]:
    return tuple(staleness or 0 for staleness in question.choices_of_staleness)


def search(question: Question, at: Conditions) -> Plan:
    """Find the division of the fewest seconds a step. PlanError where nothing may be chosen.

    Of equals, the first of the least bound. Where not all are listed, what the other planners choose is tried first.
    """
    return _Search(question, at).run()


class _Search:
    def __init__(self, question: Question, at: Conditions) -> None:
        profile, space = question.profile, question.space
        check_staleness(space.staleness)
        check_widths(space.bits)
        self._at = at
        self._profile, self._staleness = profile, space.staleness or 0
        self.choices = Choices(question)
        self._bounds = Bounds(profile, at, self._staleness)
        self.most_simulated = LEAST_SIMULATED + BLOCKS_SIMULATED // len(profile)
        self._known: dict[bytes, float] = {}
        self._tried: list[tuple[float, int, Divisions]] = []
        """The seconds of each division that was simulated, with its number."""
        self._best: tuple[Divisions, float] | None = None

    def run(self) -> Plan:
        """Search, and return the best."""
        choices = self.choices
        few = choices.count() * len(choices.widths) ** 3 <= MOST_LISTED
        if few:
            every = choices.listed(range(choices.first_cut, choices.blocks + 1), range(1, choices.batch_size + 1))
            self._try_rising(every, self._bounds.seconds(every), every.rows)
        else:
            for one in self._planned():
                self._try(one)
            every = self._each_structure(self._descended())
            self._try_each_kind(every, self._bounds.seconds(every), self.most_simulated // 3)
            for seconds, _, one in sorted(self._tried)[:IMPROVED]:
                self._improve(one, seconds, NEIGHBOURS_SIMULATED, self.most_simulated * 2 // 3)
            if self._best is not None:
                self._improve(*self._best, NEIGHBOURS_LISTED, self.most_simulated)
        if self._best is None:
            raise PlanError(
                f"no division of {choices.batch_size} samples among {', '.join(self._profile.names)} may be chosen; permit "
                "raw samples to a trainer, or the device alone"
            )
        chosen, seconds = self._best
        return Plan(self._layout(chosen), seconds, evaluated=len(self._known), is_proved=few)

    def _planned(self) -> Iterator[Divisions]:
        """Yield what the other planners choose."""
        if FLOAT32_BITS in self.choices.widths and (phased := hiertrain(self._bounds, self.choices)) is not None:
            yield canonical(phased[0])
        yield from (found for _, found in baselines(self._bounds, self.choices))

    def _try_rising(self, of: Divisions, bounds: Floats, most: int) -> None:
        """Simulate divisions in the order of their bounds until no other can be better, or as many as that."""
        for row in lowest(bounds, most):
            if self._best is not None and bounds[row] * (1.0 - ROUNDING) >= self._best[1]:
                break
            self._try(of.take(np.array([row])))

    def _try_each_kind(self, of: Divisions, bounds: Floats, most: int) -> None:
        """Simulate the divisions of the least bounds that may be better: the first of each kind, then the second, and so on."""
        order = lowest(bounds, of.rows)
        kinds, ranks = kinds_of(of, self.choices.batch_size)[order], np.zeros(of.rows, dtype=np.int64)
        for kind in np.unique(kinds):
            ranks[kinds == kind] = np.arange(np.count_nonzero(kinds == kind))
        for row in order[np.argsort(ranks, kind="stable")][:most]:
            if self._best is None or bounds[row] < self._best[1]:
                self._try(of.take(np.array([row])))

    def _try(self, one: Divisions) -> float:
        """Return the seconds of a step of one division."""
        (key,) = keys(one)
        if key not in self._known:
            seconds = simulated_seconds(self._profile, coded(self._profile, self._layout(one)), self._at)
            self._known[key] = seconds
            self._tried.append((seconds, len(self._tried), one))
            if self._best is None or seconds < self._best[1]:
                self._best = one, seconds
        return self._known[key]

    def _layout(self, one: Divisions) -> Layout:
        return layout_of(one, self._profile.names, len(self._profile), self._profile.batch_size, self._staleness)

    def _descended(self) -> Divisions:
        """Return divisions of small bounds: those of a grid, and those that follow from the best of it step by step."""
        choices = self.choices
        cuts = np.unique(np.linspace(choices.first_cut, choices.blocks, GRID_CUTS).round().astype(int)).tolist()
        shares = np.unique(np.linspace(0, choices.batch_size, GRID_SHARES + 1).round().astype(int))[1:].tolist()
        grid = joined([choices.only(width).listed(cuts, shares) for width in choices.widths])
        shared = self._with_better_shares(self._each_structure(grid))
        now = shared.take(self._spread(shared, self._bounds.seconds(shared)))
        visited, before = [shared], self._bounds.seconds(now)
        for _ in range(DESCENTS):
            others = choices.neighbours(now)
            pool, bounds = joined([now, others]), np.concatenate([before, self._bounds.seconds(others)])
            rows = self._spread(pool, bounds)
            now, after = pool.take(rows), bounds[rows]
            visited.append(now)
            if len(after) == len(before) and (after >= before * (1 - 1e-4)).all():
                break
            before = after
        return joined(visited)

    def _each_structure(self, of: Divisions) -> Divisions:
        """Return the row of the least bound of each structure, those of the least bounds."""
        rows = lowest(self._bounds.seconds(of), of.rows)
        _, first = np.unique(structures(of.take(rows)), return_index=True)
        return of.take(rows[np.sort(first)[:STRUCTURES]])

    def _with_better_shares(self, of: Divisions) -> Divisions:
        """Return the same structures with the shares that a descent along the bounds finds."""
        now, seconds = of, self._bounds.seconds(of)
        for step in SHARE_STEPS:
            moved, permitted = self.choices.with_other_shares(now, step)
            each = np.full(moved.rows, np.inf)
            each[permitted] = self._bounds.seconds(moved.take(permitted))
            table = each.reshape(of.rows, -1)
            least = np.argmin(table, axis=1)
            is_better = table[np.arange(of.rows), least] < seconds
            rows = np.flatnonzero(is_better)
            better = moved.take(rows * table.shape[1] + least[rows])
            now = joined([now.take(np.flatnonzero(~is_better)), better])
            seconds = np.concatenate([seconds[~is_better], table[rows, least[rows]]])
        return now

    def _spread(self, of: Divisions, seconds: Floats) -> Ints:
        """Return the rows of the least bounds, with at most so many of each order of roles that are present."""
        kinds = kinds_of(of, self.choices.batch_size)
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
        rows = np.array(found)
        return rows[np.argsort(seconds[rows], kind="stable")[:STARTS]]

    def _improve(self, start: Divisions, seconds: float, each: int, most: int) -> None:
        """Go from neighbour to better neighbour, of the least bounds of each, until so many in all were simulated."""
        is_better = True
        while is_better:
            others, is_better = self.choices.neighbours(start), False
            bounds = self._bounds.seconds(others)
            for row in lowest(bounds, each):
                if bounds[row] >= seconds or len(self._known) >= most:
                    break
                other = others.take(np.array([row]))
                if self._try(other) < seconds:
                    start, seconds, is_better = other, self._try(other), True
                    break
