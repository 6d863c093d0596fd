"""What may be chosen: the layouts that planners and the engine choose from."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import PlanError
from shared.planner_names import DEFAULT_BITS
from shared.planning.measurements import FLOAT32_BITS, is_bit_width
from shared.planning.profile import Profile


@dataclass(frozen=True)
class SearchSpace:
    """What a planner may choose from. A value that is given is taken as it is, even beyond what calibration allows."""

    bits: tuple[int, ...] = DEFAULT_BITS
    """Widths to consider; the profile's min_bits still bounds them from below at each cut."""
    staleness: int | None = None
    """K; None searches 0..max_staleness of the profile."""
    cuts: tuple[int, ...] | None = None
    """The only cuts allowed, the blocks before each worker but the first; None allows all."""
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


def check_staleness(staleness: int | None) -> None:
    """Refuse a K that cannot be. Raises PlanError."""
    if staleness is not None and staleness < 0:
        raise PlanError(f"the staleness is {staleness}; it must be 0 or more")


def check_widths(bits: Sequence[int]) -> None:
    """Refuse what is no bit width, and none at all. Raises PlanError."""
    if not bits or not all(map(is_bit_width, bits)):
        asked = ", ".join(map(str, bits)) or "none"
        raise PlanError(f"the bit widths are {asked}; each must be an integer of 1 to {FLOAT32_BITS}")
