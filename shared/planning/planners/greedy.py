"""The paper's search (paper 000, Alg. 2)."""

from dataclasses import replace

import numpy as np

from shared.planner_names import DEFAULT_HORIZON_STEPS
from shared.planning.cost import PlannedDeployment, migration_seconds
from shared.planning.planners.plan import Plan, check_start, horizon_seconds, plan_of
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.space import SearchSpace, candidates


def greedy(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """The deployment of least Eq. 12 plus migration (paper 000, Alg. 2 and Eq. 15), equal to trying every one.

    from_cut: today's cut; None when nothing is deployed yet, and then nothing is moved.
    Of equals: today's cut, then the smallest cut, then the most bits, then the least staleness.
    """
    space = space or SearchSpace()
    check_start(profile, horizon_steps, from_cut)
    work = candidates(profile, space)
    migrations = (
        np.zeros(len(work.cuts)) if from_cut is None else migration_seconds(profile, from_cut, work.cuts, rates)
    )
    # Eq. 12 never rises with K, so the largest K has the least cost, or K = 0, which spares the replay; the smallest K of
    # that cost is taken afterwards.
    staleness_range = space.staleness_range(profile)
    costs = migrations + np.min(
        [
            horizon_seconds(work, rates, staleness, horizon_steps)
            for staleness in {staleness_range[0], staleness_range[-1]}
        ],
        axis=0,
    )
    ties = np.flatnonzero(costs == costs.min())
    chosen = next((i for i in ties if work.cuts[i] == from_cut), ties[0])
    return plan_of(
        profile, rates, work.take([chosen]), staleness_range, horizon_steps, from_cut, len(costs) * len(staleness_range)
    )


def first_deployment(profile: Profile, rates: Rates, space: SearchSpace) -> PlannedDeployment:
    """What a run begins with for the engine to go on from: the greedy plan, with one of the K that the engine weighs.

    The plan that prefers exactness is for a link that stays as it is. Where the rates drop soon after they were probed, a run
    that begins with more bits takes up to 14 % longer on recorded links.
    """
    planned, choices = greedy(profile, rates, space).deployment, space.best_staleness(profile)
    return planned if planned.staleness in choices else replace(planned, staleness=choices[0])
