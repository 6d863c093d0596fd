"""Cost of a layout over a horizon, and the plan that comes of it, which planners of two workers share.

A planner of two workers is one file with a `Planner` in it and one line in registry.py. It knows nothing of time
passing. The engine decides when to ask it and when to act on the answer.
"""

from collections.abc import Callable

import numpy as np

from edge_agent.planning.cost import Conditions, moved_bits, moving_seconds, pipeline_seconds
from edge_agent.planning.families.pair import Pairs, pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.measurements import Floats, Ints
from edge_agent.planning.plan import Plan

Planner = Callable[[Question, Conditions], Plan]
"""A chooser of a layout under some conditions. PlanError if the question leaves none."""


def plan_of(question: Question, at: Conditions, cut: int, bits: int, staleness_range: range, evaluated: int) -> Plan:
    """Return the answer for a cut and a width, with the least K of least cost."""
    staleness = np.array(staleness_range)
    each = pairs(question.profile, np.full_like(staleness, cut), np.full_like(staleness, bits), staleness)
    costs = pipeline_seconds(each.loads.at(at), staleness, question.horizon_steps)
    row = int(np.argmin(costs))
    moving = float(migration_seconds(question, each.cuts, at)[row])
    return Plan(each.layout(row), float(costs[row]) / question.horizon_steps, moving, evaluated)


def horizon_seconds(question: Question, found: Pairs, at: Conditions) -> Floats:
    """Return Eq. 12 plus Eq. 13 for each, shape (n,): the seconds of the horizon's steps, and of the blocks' move before."""
    steps = pipeline_seconds(found.loads.at(at), found.staleness, question.horizon_steps)
    return steps + migration_seconds(question, found.cuts, at)


def migration_seconds(question: Question, cuts: Ints, at: Conditions) -> Floats:
    """Return U of Eq. 13, shape (n,): the seconds of the blocks' move from today's cut to each; 0 if there is none."""
    if question.from_cut is None:
        return np.zeros(len(cuts))
    blocks = len(question.profile)
    none, all_blocks = np.zeros_like(cuts), np.full_like(cuts, blocks)
    start = np.array([0, question.from_cut]), np.array([question.from_cut, blocks])
    after = np.array([none, cuts]), np.array([cuts, all_blocks])
    return moving_seconds(moved_bits(question.profile, start, after), at)
