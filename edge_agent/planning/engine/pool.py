"""The layouts that the engine weighs against each other, as rows of arrays."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from edge_agent.planning.cost import (
    Conditions,
    Direction,
    Loads,
    bits_between,
    computing_seconds,
    joined,
    loads_of,
    moved_bits,
    runs_of,
)
from edge_agent.planning.families.loads_at import loads_at
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.registry import listed, permits
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import Bools, Floats, Ints
from edge_agent.planning.profile import Profile
from edge_agent.planning.search import best


class Pool:
    """n layouts, each once, with their loads."""

    def __init__(
        self, profile: Profile, layouts: Sequence[Layout], loads: Loads, allowed: Bools, *, is_complete: bool
    ) -> None:
        """allowed: those that may be chosen, shape (n,). Others are weighed only because the run has or had them.

        is_complete: True if all that may be chosen are among them.
        """
        self.is_complete = is_complete
        self.layouts = tuple(layouts)
        self.loads = loads
        self.allowed = allowed
        self.staleness: Ints = np.array([layout.staleness for layout in layouts])
        """K of each, shape (n,)."""
        self._profile = profile
        self._rows = {layout: row for row, layout in enumerate(self.layouts)}
        shapes = [(layout.tiles, layout.owners, layout.widths) for layout in self.layouts]
        numbers = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
        self._shapes = np.array([numbers[shape] for shape in shapes])
        """Number of each layout's shape: those that differ in K alone share it."""
        self.runs = runs_of(self._profile, self.layouts) if all(one.is_stacked for one in self.layouts) else None
        """First block and the block behind the last of each worker, shape (W, n) each; None if parts of batches are shared."""
        self._moved: dict[int, dict[Direction, Floats]] = {}

    def __len__(self) -> int:
        """Return n."""
        return len(self.layouts)

    def __contains__(self, layout: Layout) -> bool:
        return layout in self._rows

    def __getitem__(self, row: int) -> Layout:
        return self.layouts[row]

    def index(self, layout: Layout) -> int:
        """Return the place of a layout among them. KeyError for an unknown one."""
        return self._rows[layout]

    def known(self, layout: Layout) -> int | None:
        """Return the same, or None."""
        return self._rows.get(layout)

    def rows_in(self, before: "Pool") -> Ints:
        """Return the row of each in an earlier pool, shape (n,); -1 for a newcomer."""
        return np.array([-1 if (row := before.known(layout)) is None else row for layout in self.layouts])

    def work_seconds(self, row: int, encoding: Collection[int]) -> dict[int, float]:
        """Return the profile's seconds of computing for a step of one, by the place of the worker; with those of encoding where
        that is asked for."""
        computing = computing_seconds(self._profile, self.layouts[row])
        return {
            place: float(self.loads.work[place][row]) if place in encoding else each
            for place, each in computing.items()
        }

    def same_but_staleness(self, row: int) -> Bools:
        """Tell which differ from this one in K at most, shape (n,)."""
        same: Bools = self._shapes == self._shapes[row]
        return same

    def changes(self, row: int) -> Bools:
        """Tell for which the pipeline has to run empty on the move from this one, shape (n,)."""
        changes: Bools = (self._shapes != self._shapes[row]) | (self.staleness != self.staleness[row])
        return changes

    def moved(self, row: int) -> dict[Direction, Floats]:
        """Return the bits of the move from this one to each, by direction. Columns of shape (n,)."""
        if row not in self._moved:
            self._moved[row] = self._moved_from(row)
        return self._moved[row]

    def _moved_from(self, row: int) -> dict[Direction, Floats]:
        if self.runs is not None:
            first, stop = self.runs
            return moved_bits(self._profile, (first[:, row, None], stop[:, row, None]), self.runs)
        each = [bits_between(self._profile, self.layouts[row], layout) for layout in self.layouts]
        return {
            direction: np.array([one.get(direction, 0.0) for one in each])
            for direction in dict.fromkeys(key for one in each for key in one)
        }


def is_measured(profile: Profile, layout: Layout) -> bool:
    """Tell whether a layout begins where the samples are, and was measured.

    Without times by samples, only workers that each run the next blocks were.
    """
    if not {*layout.workers} <= {*profile.names} or layout.workers[0] != profile.names[0]:
        return False
    if (costs := profile.by_samples) is not None:
        return all(bits in costs.widths for _, bits in layout.widths)
    return layout.is_stacked and bool(loads_of(profile, [layout]).measured()[0])


def pool_for(question: Question, held: Iterable[Layout], at: Conditions) -> Pool:
    """Build the pool of all permitted layouts, or of the best one where they are too many. held: those that the run has or had.
    at: the present conditions. PlanError where nothing may be chosen."""
    if (every := listed(question)) is None:
        return generated_pool(question, [best(question, at).layout], held, at)
    layouts, loads = every
    known = set(layouts)
    missing = [layout for layout in dict.fromkeys(held) if layout not in known]
    if missing:
        loads = joined([loads, loads_at(question, missing, at)])
    allowed = np.arange(len(loads)) < len(layouts)
    return Pool(question.profile, [*layouts, *missing], loads, allowed, is_complete=True)


def generated_pool(question: Question, found: Iterable[Layout], held: Iterable[Layout], at: Conditions) -> Pool:
    """Build the pool of some layouts, without those that were not wholly measured. held, at: as for `pool_for`."""
    layouts = list(dict.fromkeys([*held, *found]))
    loads = loads_at(question, layouts, at)
    measured = loads.measured()
    layouts = [layout for layout, known in zip(layouts, measured, strict=True) if known]
    allowed = np.array([permits(question, layout) for layout in layouts], dtype=np.bool_)
    return Pool(question.profile, layouts, loads.take(measured), allowed, is_complete=False)
