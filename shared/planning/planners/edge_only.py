"""Training on the edge alone."""

from shared.planner_names import DEFAULT_HORIZON_STEPS
from shared.planning.cost import PlannedDeployment
from shared.planning.measurements import FLOAT32_BITS
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
    """What training on the edge alone costs."""
    return fixed(profile, rates, PlannedDeployment(len(profile), 0, FLOAT32_BITS), horizon_steps, from_cut)
