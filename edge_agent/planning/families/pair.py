"""A device and one trainer on one cut: cut, bits, K (paper 000) and, of several trainers, which one (paper 003).

All of them can be listed. The layouts are the same with every trainer, so a table of n layouts under the conditions of N
trainers costs all N times n.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edge_agent.planning.cost import Conditions, Loads, stacked_loads
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.stacks import neighbours as neighbours
from edge_agent.planning.families.stacks import permits as permits
from edge_agent.planning.layout import Layout, stacked
from edge_agent.planning.measurements import Bools, Floats, Ints
from edge_agent.planning.profile import Profile
from edge_agent.planning.space import SearchSpace, check_staleness, check_widths
from shared.errors import PlanError

ALONE_CONDITIONS = Conditions(np.ones((2, 2)), np.zeros((2, 2)), np.ones(2))
"""Conditions of the device alone, which uses no link."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Layouts of a device and any trainer as columns, shape (n,)."""

    profile: Profile
    cuts: Ints
    """Cuts. As many blocks as the model has means the device alone."""
    bits: Ints
    staleness: Ints
    loads: Loads

    def __len__(self) -> int:
        """Return n."""
        return len(self.cuts)

    @cached_property
    def is_alone(self) -> Bools:
        """Return True for the device alone, shape (n,)."""
        alone: Bools = self.cuts == len(self.profile)
        return alone

    def layout(self, row: int, trainer: str | None = None) -> Layout:
        """Return one of them. trainer: the second worker; left out, that of the profile."""
        workers = self.profile.names if trainer is None else (self.profile.names[0], trainer)
        cut, bits, staleness = (int(column[row]) for column in (self.cuts, self.bits, self.staleness))
        return stacked(self.profile, (cut,), staleness, (bits,), workers)

    def with_each(self, at: Conditions) -> tuple[Ints, Floats]:
        """Return the best with each of N trainers, and its seconds a step, shape (N,); infinite where none may be chosen.

        at: between the device and each of them, stacked.
        """
        seconds = np.where(self.is_alone, np.inf, self.loads.seconds(at))
        rows: Ints = np.argmin(seconds, axis=-1)
        return rows, np.take_along_axis(seconds, rows[:, None], axis=-1)[:, 0]

    def alone(self, device_factor: float = 1.0) -> tuple[int, float] | None:
        """Return the row of the device alone, and its seconds a step; None if it may not be chosen.

        device_factor: ratio of the device's times to those of the profile.
        """
        if not self.is_alone.any():
            return None
        at = replace(ALONE_CONDITIONS, factors=np.array([device_factor, 1.0]))
        seconds = np.where(self.is_alone, self.loads.seconds(at), np.inf)
        row = int(np.argmin(seconds))
        return row, float(seconds[row])


def pairs(profile: Profile, cuts: Ints, bits: Ints, staleness: Ints) -> Pairs:
    """Return these layouts, permitted or not. cuts: within 1..L."""
    return Pairs(profile, cuts, bits, staleness, stacked_loads(profile, (0, 1), (cuts,), (bits,), staleness))


def best_pairs(question: Question) -> Pairs:
    """Return all layouts that can be the best, of equals the first: the smallest cut, then the most bits, then the least K.

    question: of the device and one trainer, which stands for any. PlanError for other ones, and as `listed_pairs`.
    """
    if not question.is_pair:
        raise PlanError(
            "candidates are trainers for one cut, so the profile must be of two workers and have max_staleness; measure "
            "one with edge-agent profile"
        )
    profile, space = question.profile, question.space
    return listed_pairs(profile, space, sorted(space.best_staleness(profile)))


def listed_pairs(profile: Profile, space: SearchSpace, staleness: Sequence[int]) -> Pairs:
    """Return every (cut, bits) of the space that was measured and keeps within min_bits, with each of these K.

    They are ordered by cut, then from many bits to few, then by K as given. The device alone has the largest width,
    because a smaller one would spare nothing there. The data stays on the edge, so a cut is at least 1. PlanError when
    the space is malformed or nothing is left of it.
    """
    check_space(profile, space)
    each = np.arange(1, len(profile) + 1 if space.allow_edge_only else len(profile))
    widths = np.array(sorted(set(space.bits), reverse=True))
    cuts, bits = np.repeat(each, len(widths)), np.tile(widths, len(each))
    alone = cuts == len(profile)
    allowed = np.where(alone, bits == widths[0], space.permits_bits(profile, cuts, bits))
    if space.cuts is not None:
        allowed &= cuts == space.cuts[0]
    cuts, bits = (np.repeat(column[allowed], len(staleness)) for column in (cuts, bits))
    found = pairs(profile, cuts, bits, np.resize(np.array(staleness), len(cuts)))
    measured = found.loads.measured()
    if not measured.any():
        which = f"cut {space.cuts[0]}" if space.cuts is not None else "any cut"
        raise PlanError(
            f"the profile leaves no deployment to choose at {which} with {', '.join(map(str, sorted(space.bits)))} bits; "
            "allow more bit widths, another cut or edge-only, or measure what the profile has as null"
        )
    if measured.all():
        return found
    cuts, bits, each_staleness = (column[measured] for column in (found.cuts, found.bits, found.staleness))
    return Pairs(profile, cuts, bits, each_staleness, found.loads.take(measured))


def is_for(question: Question) -> bool:
    """See `Family.is_for`."""
    return question.is_pair


def listed(question: Question) -> tuple[list[Layout], Loads] | None:
    """Return all layouts that can be the best, with their loads. PlanError as `listed_pairs`."""
    found = listed_pairs(question.profile, question.space, question.space.best_staleness(question.profile))
    return [found.layout(row) for row in range(len(found))], found.loads


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield every layout with its seconds a step, rising; of equals in the order of `best_pairs`."""
    found = best_pairs(question)
    seconds = found.loads.seconds(at)
    for row in np.argsort(seconds, kind="stable").tolist():
        yield float(seconds[row]), found.layout(row)


def check_space(profile: Profile, space: SearchSpace) -> None:
    """Refuse an impossible space. Raises PlanError."""
    most = len(profile) if space.allow_edge_only else len(profile) - 1
    if space.cuts is not None and (len(space.cuts) != 1 or not 1 <= space.cuts[0] <= most):
        edge_only = "" if space.allow_edge_only else " (edge-only is not allowed here)"
        cuts = ", ".join(map(str, space.cuts))
        raise PlanError(f"the cut is {cuts}; with {len(profile)} blocks it must be from 1 to {most}{edge_only}")
    check_staleness(space.staleness)
    check_widths(space.bits)
