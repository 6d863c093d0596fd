"""Training on the edge alone."""

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.layout import stacked
from edge_agent.planning.planners.fixed import fixed
from edge_agent.planning.planners.plan import Plan
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace


def edge_only(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,  # noqa: ARG001 - there is nothing to choose
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Return the cost of training on the edge alone."""
    return fixed(profile, rates, stacked(profile, (len(profile),), 0, ()), horizon_steps, from_cut)
