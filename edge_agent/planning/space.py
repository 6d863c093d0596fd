"""The search space: the layouts from which planners and the engine choose."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.planner_names import DEFAULT_BITS
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Ints, is_bit_width
from edge_agent.planning.profile import Profile
from shared.errors import PlanError


@dataclass(frozen=True)
class SearchSpace:
    """The choices of a planner. A given value is used as it is, even beyond the limits of a calibration."""

    bits: tuple[int, ...] = DEFAULT_BITS
    """Widths to consider. The profile's min_bits still bounds them from below at each cut."""
    staleness: int | None = None
    """K; None searches 0..max_staleness of the profile."""
    cuts: tuple[int, ...] | None = None
    """The only cuts allowed, the blocks before each permitted worker but the first; None allows all."""
    widths: tuple[int, ...] | None = None
    """With `cuts`, the only bits allowed at each of them; None allows all."""
    workers: frozenset[str] | None = None
    """Workers that may have blocks, the one with the samples among them; None permits all. Of two, both."""
    allow_edge_only: bool = True
    """True if all blocks may be on the edge, if the profile has measured that."""
    inputs_to: frozenset[str] = frozenset()
    """Workers that may have raw samples, in a division among three tiers. Other layouts begin where the samples are."""
    labels_to: frozenset[str] | None = None
    """Workers that may have labels, in such a division; None permits all."""
    only: Layout | None = None
    """The only layout allowed; None allows all."""
    uncalibrated_bits: tuple[int, ...] = ()
    """Widths whose codec is not of the profile's family, so that its min_bits do not bound them."""

    def staleness_range(self, profile: Profile) -> range:
        """Return all values of K that may be chosen."""
        return (
            range((profile.max_staleness or 0) + 1)
            if self.staleness is None
            else range(self.staleness, self.staleness + 1)
        )

    def best_staleness(self, profile: Profile) -> tuple[int, ...]:
        """Return the values of K that can be the fastest: the largest, and K = 0, which spares the replay."""
        among = self.staleness_range(profile)
        return (among[-1], among[0]) if among[0] < among[-1] else (among[-1],)

    def permits_bits(self, profile: Profile, cuts: Ints, bits: Ints) -> Bools:
        """Tell which widths keep within the profile's min_bits at which cuts, shape as both broadcast.

        At a cut without one, only widths that are not bounded do.
        """
        if profile.min_bits is None:
            return np.ones(np.broadcast_shapes(cuts.shape, bits.shape), dtype=np.bool_)
        fewest = np.array(profile.min_bits, dtype=np.float64)[cuts]
        permitted: Bools = (bits >= fewest) | np.isin(bits, self.uncalibrated_bits)
        return permitted


def check_staleness(staleness: int | None) -> None:
    """Refuse an impossible K. Raises PlanError."""
    if staleness is not None and staleness < 0:
        raise PlanError(f"the staleness is {staleness}; it must be 0 or more")


def check_widths(bits: Sequence[int]) -> None:
    """Refuse an invalid bit width, and an empty list. Raises PlanError."""
    if not bits or not all(map(is_bit_width, bits)):
        asked = ", ".join(map(str, bits)) or "none"
        raise PlanError(f"the bit widths are {asked}; each must be an integer of 1 to {FLOAT32_BITS}")
