"""The plan that gives up no accuracy for a gain that nobody would notice. `edge-agent plan` uses it."""

import numpy as np

from shared.planner_names import DEFAULT_HORIZON_STEPS, EXACTNESS_MARGIN
from shared.planning.cost import migration_seconds
from shared.planning.planners.plan import Plan, check_start, horizon_seconds, plan_of
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.space import SearchSpace, candidates


def accurate(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Of all deployments within `EXACTNESS_MARGIN` of the least Eq. 12 plus migration, the most exact one.

    More bits are more exact, and with equal bits a smaller K is. Of equals: the fastest, today's cut, the smallest cut.
    from_cut: today's cut; None when nothing is deployed yet, and then nothing is moved.
    """
    space = space or SearchSpace()
    check_start(profile, horizon_steps, from_cut)
    work = candidates(profile, space)
    among = space.staleness_range(profile)
    costs = np.array([horizon_seconds(work, rates, staleness, horizon_steps) for staleness in among])
    if from_cut is not None:
        costs += migration_seconds(profile, from_cut, work.cuts, rates)
    bounds = costs <= (1.0 + EXACTNESS_MARGIN) * costs.min()
    index, row = min(
        zip(*np.nonzero(bounds), strict=True),
        key=lambda at: (-work.bits[at[1]], at[0], costs[at], work.cuts[at[1]] != from_cut, work.cuts[at[1]]),
    )
    chosen = range(among[int(index)], among[int(index)] + 1)
    return plan_of(profile, rates, work.take([int(row)]), chosen, horizon_steps, from_cut, costs.size)
