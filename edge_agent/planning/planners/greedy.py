"""The paper's search (paper 000, Alg. 2)."""

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.plan import horizon_seconds, plan_of


def greedy(question: Question, at: Conditions) -> Plan:
    """Choose the deployment of least Eq. 12 plus migration (paper 000, Alg. 2 and Eq. 15), equal to trying every one.

    Of equals: today's cut, then the smallest cut, then the most bits, then the least staleness.
    """
    among = question.space.staleness_range(question.profile)
    # Eq. 12 never rises with K, so the least cost is at the largest K, or at K = 0, which spares the replay. The
    # smallest K of that cost is taken afterwards.
    found = listed_pairs(question.profile, question.space, sorted({among[0], among[-1]}))
    costs = horizon_seconds(question, found, at)
    ties = np.flatnonzero(costs == costs.min())
    cuts, bits = found.cuts[ties], found.bits[ties]
    first = np.lexsort((-bits, cuts, cuts != question.from_cut))[0]
    evaluated = len(costs) // len({among[0], among[-1]}) * len(among)
    return plan_of(question, at, int(cuts[first]), int(bits[first]), among, evaluated)
