"""What may be chosen: the deployments that planners and the engine choose from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.errors import PlanError
from shared.planner_names import DEFAULT_BITS
from shared.planning.cost import StepWork, work_of
from shared.planning.measurements import FLOAT32_BITS, is_bit_width
from shared.planning.profile import Profile


@dataclass(frozen=True)
class SearchSpace:
    """What a planner may choose from. A value that is given is taken as it is, even beyond what calibration allows."""

    bits: tuple[int, ...] = DEFAULT_BITS
    """Widths to consider; the profile's min_bits still bounds them from below at each cut."""
    staleness: int | None = None
    """K; None searches 0..max_staleness of the profile."""
    cut: int | None = None
    """The only cut allowed; None allows all."""
    allow_edge_only: bool = True
    """Whether all blocks may be on the edge, where the profile has measured that."""
    uncalibrated_bits: tuple[int, ...] = ()
    """Widths whose codec is not of the profile's family, so that its min_bits do not bound them."""

    def staleness_range(self, profile: Profile) -> range:
        """All values of K that may be chosen."""
        return (
            range((profile.max_staleness or 0) + 1)
            if self.staleness is None
            else range(self.staleness, self.staleness + 1)
        )

    def best_staleness(self, profile: Profile) -> tuple[int, ...]:
        """The values of K that can be the fastest: the largest, and K = 0, which spares the replay."""
        among = self.staleness_range(profile)
        return (among[-1], among[0]) if among[0] < among[-1] else (among[-1],)


def candidates(profile: Profile, space: SearchSpace) -> StepWork:
    """Every (cut, bits) of the space that was measured and keeps within min_bits, by cut and then from many bits to few.

    Edge-only has the largest width alone, because a smaller one would spare nothing there. The data stays on the edge, so a cut
    is at least 1. PlanError when the space is malformed or nothing is left of it.
    """
    _check_space(profile, space)
    cuts = np.arange(1, len(profile) + 1 if space.allow_edge_only else len(profile))
    widths = np.array(sorted(set(space.bits), reverse=True))
    work = work_of(profile, np.repeat(cuts, len(widths)), np.tile(widths, len(cuts)))
    edge_only = work.cuts == len(profile)
    allowed = work.measured() & (~edge_only | (work.bits == widths[0]))
    if profile.min_bits is not None:
        bounded = ~edge_only & ~np.isin(work.bits, space.uncalibrated_bits)
        allowed &= (work.bits >= np.array(profile.min_bits, dtype=np.float64)[work.cuts]) | ~bounded
    if space.cut is not None:
        allowed &= work.cuts == space.cut
    if not allowed.any():
        which = f"cut {space.cut}" if space.cut is not None else "any cut"
        raise PlanError(
            f"the profile leaves no deployment to choose at {which} with {', '.join(map(str, sorted(space.bits)))} bits; "
            "allow more bit widths, another cut or edge-only, or measure what the profile has as null"
        )
    return work.take(allowed)


def _check_space(profile: Profile, space: SearchSpace) -> None:
    most = len(profile) if space.allow_edge_only else len(profile) - 1
    if space.cut is not None and not 1 <= space.cut <= most:
        edge_only = "" if space.allow_edge_only else " (edge-only is not allowed here)"
        raise PlanError(f"the cut is {space.cut}; with {len(profile)} blocks it must be from 1 to {most}{edge_only}")
    check_staleness(space.staleness)
    check_widths(space.bits)


def check_staleness(staleness: int | None) -> None:
    """Refuse a K that cannot be. Raises PlanError."""
    if staleness is not None and staleness < 0:
        raise PlanError(f"the staleness is {staleness}; it must be 0 or more")


def check_widths(bits: Sequence[int]) -> None:
    """Refuse what is no bit width, and none at all. Raises PlanError."""
    if not bits or not all(map(is_bit_width, bits)):
        asked = ", ".join(map(str, bits)) or "none"
        raise PlanError(f"the bit widths are {asked}; each must be an integer of 1 to {FLOAT32_BITS}")
