"""The paper's search (paper 000, Alg. 2)."""

from dataclasses import replace

import numpy as np

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.layout import Layout
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.plan import check_start, horizon_seconds, migration_seconds, over, plan_of
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace


def greedy(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Choose the deployment of least Eq. 12 plus migration (paper 000, Alg. 2 and Eq. 15), equal to trying every one.

    from_cut: today's cut; None when nothing is deployed yet, and then nothing is moved.
    Of equals: today's cut, then the smallest cut, then the most bits, then the least staleness.
    """
    space = space or SearchSpace()
    check_start(profile, horizon_steps, from_cut)
    among, at = space.staleness_range(profile), over(profile, rates)
    # Eq. 12 never rises with K, so the least cost is at the largest K, or at K = 0, which spares the replay. The
    # smallest K of that cost is taken afterwards.
    found = listed_pairs(profile, space, sorted({among[0], among[-1]}))
    costs = horizon_seconds(found, at, horizon_steps) + migration_seconds(profile, from_cut, found.cuts, at)
    ties = np.flatnonzero(costs == costs.min())
    cuts, bits = found.cuts[ties], found.bits[ties]
    first = np.lexsort((-bits, cuts, cuts != from_cut))[0]
    evaluated = len(costs) // len({among[0], among[-1]}) * len(among)
    return plan_of(profile, rates, int(cuts[first]), int(bits[first]), among, horizon_steps, from_cut, evaluated)


def first_deployment(profile: Profile, rates: Rates, space: SearchSpace) -> Layout:
    """Choose the first deployment of a run with an engine: the greedy plan, with one of the K that the engine weighs.

    The plan that prefers exactness is for a link that does not change. If the rates drop soon after the probe, a run
    that begins with more bits takes up to 14 % longer on recorded links.
    """
    planned, choices = greedy(profile, rates, space).layout, space.best_staleness(profile)
    return planned if planned.staleness in choices else replace(planned, staleness=choices[0])
