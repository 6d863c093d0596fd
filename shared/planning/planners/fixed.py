"""A deployment that is given rather than chosen."""

from shared.planner_names import DEFAULT_HORIZON_STEPS
from shared.planning.cost import PlannedDeployment
from shared.planning.planners.greedy import greedy
from shared.planning.planners.plan import Plan
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.space import SearchSpace


def fixed(
    profile: Profile,
    rates: Rates,
    deployment: PlannedDeployment,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """What one deployment costs. PlanError when it is out of range, not measured, or below the profile's min_bits."""
    space = SearchSpace((deployment.bits,), deployment.staleness, deployment.cut, allow_edge_only=True)
    return greedy(profile, rates, space, horizon_steps, from_cut)
