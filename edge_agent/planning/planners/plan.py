"""Cost of a layout over a horizon, and the plan that comes of it, which planners of two workers share.

A planner is one file with a function like `Planner` in it and one line in registry.py. It knows nothing of time
passing. The engine decides when to ask it and when to act on the answer.
"""

from typing import Protocol

import numpy as np

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.cost import Conditions, conditions_of, moved_bits, moving_seconds, pipeline_seconds
from edge_agent.planning.families.pair import Pairs, pairs
from edge_agent.planning.measurements import Floats, Ints
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.space import SearchSpace
from shared.errors import PlanError


class Planner(Protocol):
    """A chooser of a layout for a link."""

    def __call__(
        self,
        profile: Profile,
        rates: Rates,
        space: SearchSpace | None = None,
        horizon_steps: int = DEFAULT_HORIZON_STEPS,
        from_cut: int | None = None,
    ) -> Plan:
        """Choose the layout. PlanError if the profile and the space leave none.

        horizon_steps: the expected time in force. from_cut: today's cut; None if nothing is deployed yet.
        """


def plan_of(
    profile: Profile,
    rates: Rates,
    cut: int,
    bits: int,
    staleness_range: range,
    horizon_steps: int,
    from_cut: int | None,
    evaluated: int,
) -> Plan:
    """Return the answer for a cut and a width, with the least K of least cost."""
    staleness, at = np.array(staleness_range), over(profile, rates)
    each = pairs(profile, np.full_like(staleness, cut), np.full_like(staleness, bits), staleness)
    costs = pipeline_seconds(each.loads.at(at), staleness, horizon_steps)
    row = int(np.argmin(costs))
    return Plan(
        each.layout(row),
        float(costs[row]) / horizon_steps,
        0.0 if from_cut is None else float(migration_seconds(profile, from_cut, np.array([cut]), at)[0]),
        evaluated,
    )


def horizon_seconds(found: Pairs, at: Conditions, horizon_steps: int) -> Floats:
    """Return Eq. 12 for each, shape (n,)."""
    return pipeline_seconds(found.loads.at(at), found.staleness, horizon_steps)


def migration_seconds(profile: Profile, from_cut: int | None, cuts: Ints, at: Conditions) -> Floats:
    """Return U of Eq. 13, shape (n,): the seconds of the blocks' move from one cut to each; 0 if nothing is deployed yet."""
    if from_cut is None:
        return np.zeros(len(cuts))
    none, blocks = np.zeros_like(cuts), np.full_like(cuts, len(profile))
    start = np.array([0, from_cut]), np.array([from_cut, len(profile)])
    return moving_seconds(moved_bits(profile, start, (np.array([none, cuts]), np.array([cuts, blocks]))), at)


def over(profile: Profile, rates: Rates) -> Conditions:
    """Return the conditions of two workers over a link."""
    near, far = profile.names
    return conditions_of(profile, {(near, far): rates})


def check_start(profile: Profile, horizon_steps: int, from_cut: int | None) -> None:
    """Refuse a horizon of no step, and a cut that the model lacks. Raises PlanError."""
    if horizon_steps < 1:
        raise PlanError(f"the horizon is {horizon_steps} steps; it must be 1 or more")
    if from_cut is not None and not 1 <= from_cut <= len(profile):
        raise PlanError(
            f"the cut to start from is {from_cut}; with {len(profile)} blocks it must be from 1 to {len(profile)}"
        )
