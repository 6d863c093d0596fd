"""A given deployment."""

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Plan
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace


def fixed(
    profile: Profile,
    rates: Rates,
    layout: Layout,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Return the cost of one layout. PlanError when it is out of range, not measured, or below the profile's min_bits."""
    cuts, bits = layout.cuts or (len(profile),), layout.bits or (FLOAT32_BITS,)
    space = SearchSpace(bits, layout.staleness, cuts, allow_edge_only=True)
    return greedy(profile, rates, space, horizon_steps, from_cut)
