"""Two workers on one cut: cut, bits and K (paper 000). All of them can be listed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.cost import Conditions, Loads, stacked_loads
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.stacks import neighbours as neighbours
from edge_agent.planning.families.stacks import permits as permits
from edge_agent.planning.layout import Layout, stacked
from edge_agent.planning.measurements import Ints
from edge_agent.planning.profile import Profile
from edge_agent.planning.space import SearchSpace, check_staleness, check_widths
from shared.errors import PlanError


@dataclass(frozen=True, eq=False)
class Pairs:
    """Layouts of two workers as columns, shape (n,)."""

    profile: Profile
    cuts: Ints
    """Cuts. As many blocks as the model has means the device alone."""
    bits: Ints
    staleness: Ints
    loads: Loads

    def __len__(self) -> int:
        """Return n."""
        return len(self.cuts)

    def layout(self, row: int) -> Layout:
        """Return one of them."""
        return stacked(self.profile, (int(self.cuts[row]),), int(self.staleness[row]), (int(self.bits[row]),))


def pairs(profile: Profile, cuts: Ints, bits: Ints, staleness: Ints) -> Pairs:
    """Return these layouts, permitted or not. cuts: within 1..L."""
    return Pairs(profile, cuts, bits, staleness, stacked_loads(profile, (0, 1), (cuts,), (bits,), staleness))


def listed_pairs(profile: Profile, space: SearchSpace, staleness: Sequence[int]) -> Pairs:
    """Return every (cut, bits) of the space that was measured and keeps within min_bits, with each of these K.

    They are ordered by K as given, then by cut, then from many bits to few. The device alone has the largest width,
    because a smaller one would spare nothing there. The data stays on the edge, so a cut is at least 1. PlanError when
    the space is malformed or nothing is left of it.
    """
    check_space(profile, space)
    each = np.arange(1, len(profile) + 1 if space.allow_edge_only else len(profile))
    widths = np.array(sorted(set(space.bits), reverse=True))
    cuts, bits = np.repeat(each, len(widths)), np.tile(widths, len(each))
    alone = cuts == len(profile)
    allowed = ~alone | (bits == widths[0])
    if profile.min_bits is not None:
        bounded = ~alone & ~np.isin(bits, space.uncalibrated_bits)
        allowed &= (bits >= np.array(profile.min_bits, dtype=np.float64)[cuts]) | ~bounded
    if space.cuts is not None:
        allowed &= cuts == space.cuts[0]
    cuts, bits = cuts[allowed], bits[allowed]
    count = len(cuts)
    found = pairs(
        profile, np.tile(cuts, len(staleness)), np.tile(bits, len(staleness)), np.repeat(np.array(staleness), count)
    )
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
    found = _best_pairs(question)
    return [found.layout(row) for row in range(len(found))], found.loads


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield every layout with its seconds a step, rising; of equals by cut, then from many bits to few, then by K."""
    found = _best_pairs(question)
    seconds = found.loads.seconds(at)
    for row in np.lexsort((found.staleness, -found.bits, found.cuts, seconds)).tolist():
        yield float(seconds[row]), found.layout(row)


def _best_pairs(question: Question) -> Pairs:
    return listed_pairs(question.profile, question.space, question.space.best_staleness(question.profile))


def check_space(profile: Profile, space: SearchSpace) -> None:
    """Refuse an impossible space. Raises PlanError."""
    most = len(profile) if space.allow_edge_only else len(profile) - 1
    if space.cuts is not None and (len(space.cuts) != 1 or not 1 <= space.cuts[0] <= most):
        edge_only = "" if space.allow_edge_only else " (edge-only is not allowed here)"
        cuts = ", ".join(map(str, space.cuts))
        raise PlanError(f"the cut is {cuts}; with {len(profile)} blocks it must be from 1 to {most}{edge_only}")
    check_staleness(space.staleness)
    check_widths(space.bits)
