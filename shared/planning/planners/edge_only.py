"""Training on the edge alone."""

from shared.planner_names import DEFAULT_HORIZON_STEPS
from shared.planning.layout import stacked
from shared.planning.planners.fixed import fixed
from shared.planning.planners.plan import Plan
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.space import SearchSpace


def edge_only(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,  # noqa: ARG001 - there is nothing to choose
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Return the cost of training on the edge alone."""
    return fixed(profile, rates, stacked(profile, (len(profile),), 0, ()), horizon_steps, from_cut)
