"""The layouts that the engine weighs against each other, as rows of arrays."""

from collections.abc import Sequence
from itertools import count

import numpy as np

from shared.planning.cost import Direction, Loads, bits_between, is_stacked, joined, loads_of, moved_bits, runs_of
from shared.planning.families.pair import listed
from shared.planning.layout import Layout
from shared.planning.measurements import Bools, Floats, Ints
from shared.planning.profile import Profile
from shared.planning.space import SearchSpace


class Pool:
    """n layouts, each once, with their loads."""

    def __init__(self, profile: Profile, layouts: Sequence[Layout], loads: Loads, allowed: Bools) -> None:
        """allowed: those that may be chosen, shape (n,). Others are weighed only because the run has them."""
        self.layouts = tuple(layouts)
        self.loads = loads
        self.allowed = allowed
        self.staleness: Ints = np.array([layout.staleness for layout in layouts])
        """K of each, shape (n,)."""
        self._profile = profile
        self._rows = {layout: row for row, layout in enumerate(self.layouts)}
        homes, shapes = count(), count()
        by_home: dict[object, int] = {}
        by_shape: dict[object, int] = {}
        for layout in self.layouts:
            if (layout.tiles, layout.owners) not in by_home:
                by_home[layout.tiles, layout.owners] = next(homes)
            if (layout.tiles, layout.owners, layout.widths) not in by_shape:
                by_shape[layout.tiles, layout.owners, layout.widths] = next(shapes)
        self._homes = np.array([by_home[layout.tiles, layout.owners] for layout in self.layouts])
        """Number of each layout's home: those with the same blocks at the same workers share it."""
        self._shapes = np.array([by_shape[one.tiles, one.owners, one.widths] for one in self.layouts])
        self._runs = runs_of(profile, self.layouts) if all(map(is_stacked, self.layouts)) else None
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

    def same_but_staleness(self, row: int) -> Bools:
        """Tell which differ from this one in K at most, shape (n,)."""
        same: Bools = self._shapes == self._shapes[row]
        return same

    def changes(self, row: int) -> Bools:
        """Tell for which the pipeline has to run empty on the move from this one, shape (n,)."""
        changes: Bools = (self._homes != self._homes[row]) | (self.staleness != self.staleness[row])
        return changes

    def moved(self, row: int) -> dict[Direction, Floats]:
        """Return the bits of the move from this one to each, by direction. Columns of shape (n,)."""
        if row not in self._moved:
            self._moved[row] = self._moved_from(row)
        return self._moved[row]

    def _moved_from(self, row: int) -> dict[Direction, Floats]:
        if self._runs is not None:
            first, stop = self._runs
            return moved_bits(self._profile, (first[:, row, None], stop[:, row, None]), self._runs)
        each = [bits_between(self._profile, self.layouts[row], layout) for layout in self.layouts]
        return {
            direction: np.array([one.get(direction, 0.0) for one in each])
            for direction in dict.fromkeys(key for one in each for key in one)
        }


def pool_of(profile: Profile, space: SearchSpace, today: Layout) -> Pool:
    """Return the pool of a search space, and today's layout, which need not be in it. PlanError when nothing can be chosen."""
    found = listed(profile, space, space.best_staleness(profile))
    layouts, loads = [found.layout(row) for row in range(len(found))], found.loads
    allowed = np.ones(len(layouts), dtype=np.bool_)
    if today not in set(layouts):
        own = loads_of(profile, [today])
        layouts, loads, allowed = [*layouts, today], joined([loads, own]), np.append(allowed, False)
    return Pool(profile, layouts, loads, allowed)
