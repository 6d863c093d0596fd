"""The plan that gives up no accuracy for an unnoticeable gain. `edge-agent plan` uses it."""

import numpy as np

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS, EXACTNESS_MARGIN
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.plan import check_start, horizon_seconds, migration_seconds, over, plan_of
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace


def accurate(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Choose the most exact of all deployments within `EXACTNESS_MARGIN` of the least Eq. 12 plus migration.

    More bits are more exact, and with equal bits a smaller K is. Of equals: the fastest, today's cut, the smallest cut.
    from_cut: today's cut; None when nothing is deployed yet, and then nothing is moved.
    """
    space = space or SearchSpace()
    check_start(profile, horizon_steps, from_cut)
    found, at = listed_pairs(profile, space, space.staleness_range(profile)), over(profile, rates)
    costs = horizon_seconds(found, at, horizon_steps) + migration_seconds(profile, from_cut, found.cuts, at)
    within = np.flatnonzero(costs <= (1.0 + EXACTNESS_MARGIN) * costs.min())
    cuts = found.cuts[within]
    row = within[np.lexsort((cuts, cuts != from_cut, costs[within], found.staleness[within], -found.bits[within]))[0]]
    chosen = int(found.staleness[row])
    cut, bits = int(found.cuts[row]), int(found.bits[row])
    return plan_of(profile, rates, cut, bits, range(chosen, chosen + 1), horizon_steps, from_cut, len(costs))
