"""The baseline of one cut for a serial run (paper 000, 6.1)."""

import numpy as np

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.planners.plan import Plan, check_start, over, plan_of
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace


def jointdnn(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Choose the baseline for a serial run in float32: the cut of least T_sum, K = 0 (paper 000, 6.1).

    It knows no migration, so `from_cut` only adds the cost of moving there. Of the space it uses `allow_edge_only`
    alone. Of equals, the smallest cut.
    """
    check_start(profile, horizon_steps, from_cut)
    allow_edge_only = space is None or space.allow_edge_only
    found = listed_pairs(profile, SearchSpace((FLOAT32_BITS,), allow_edge_only=allow_edge_only), (0,))
    cut = int(found.cuts[np.argmin(found.loads.at(over(profile, rates)).total)])
    return plan_of(profile, rates, cut, FLOAT32_BITS, range(1), horizon_steps, from_cut, len(found))
