"""Planners of two workers that ours are compared with (paper 000, 6.1)."""

import numpy as np

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS, JOINTDNN
from edge_agent.planning import FLOAT32_BITS, Layout, Plan, Planner, Profile, Rates, SearchSpace, greedy
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.planners.plan import check_start, over, plan_of

EDGE_ONLY = "edge-only"


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


def edge_only(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Return the cost of training on the edge alone. PlanError where the space forbids it."""
    is_allowed = space is None or space.allow_edge_only
    alone = SearchSpace((FLOAT32_BITS,), 0, (len(profile),), allow_edge_only=is_allowed)
    return greedy(profile, rates, alone, horizon_steps, from_cut)


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


PLANNERS: dict[str, Planner] = {JOINTDNN: jointdnn, EDGE_ONLY: edge_only}
