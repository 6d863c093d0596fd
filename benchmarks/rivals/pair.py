"""Planners of two workers that ours are compared with (paper 000, 6.1)."""

from dataclasses import replace

import numpy as np

from edge_agent.planner_names import JOINTDNN
from edge_agent.planning import (
    FLOAT32_BITS,
    Conditions,
    Layout,
    Plan,
    Planner,
    Profile,
    Question,
    Rates,
    SearchSpace,
    conditions_of,
    greedy,
)
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.planners.plan import plan_of

EDGE_ONLY = "edge-only"


def over(profile: Profile, rates: Rates) -> Conditions:
    """Return the conditions of two workers over a link."""
    near, far = profile.names
    return conditions_of(profile, {(near, far): rates})


def jointdnn(question: Question, at: Conditions) -> Plan:
    """Choose the baseline for a serial run in float32: the cut of least T_sum, K = 0 (paper 000, 6.1).

    It knows no migration, so `from_cut` only adds the cost of moving there. Of the space it uses `allow_edge_only`
    alone. Of equals, the smallest cut.
    """
    space = SearchSpace((FLOAT32_BITS,), allow_edge_only=question.space.allow_edge_only)
    found = listed_pairs(question.profile, space, (0,))
    cut = int(found.cuts[np.argmin(found.loads.at(at).total)])
    return plan_of(question, at, cut, FLOAT32_BITS, range(1), len(found))


def edge_only(question: Question, at: Conditions) -> Plan:
    """Return the cost of training on the edge alone. PlanError where the space forbids it."""
    alone = SearchSpace((FLOAT32_BITS,), 0, (len(question.profile),), allow_edge_only=question.space.allow_edge_only)
    return greedy(replace(question, space=alone), at)


def fixed(question: Question, at: Conditions, layout: Layout) -> Plan:
    """Return the cost of one layout. PlanError when it is out of range, not measured, or below the profile's min_bits."""
    cuts, bits = layout.cuts or (len(question.profile),), layout.bits or (FLOAT32_BITS,)
    return greedy(replace(question, space=SearchSpace(bits, layout.staleness, cuts)), at)


PLANNERS: dict[str, Planner] = {JOINTDNN: jointdnn, EDGE_ONLY: edge_only}
