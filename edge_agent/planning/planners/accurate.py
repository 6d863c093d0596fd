"""The plan that gives up no accuracy for an unnoticeable gain. `edge-agent plan` uses it."""

import numpy as np

from edge_agent.planner_names import EXACTNESS_MARGIN
from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.plan import horizon_seconds, plan_of


def accurate(question: Question, at: Conditions) -> Plan:
    """Choose the most exact of all deployments within `EXACTNESS_MARGIN` of the least Eq. 12 plus migration.

    More bits are more exact, and with equal bits a smaller K is. Of equals: the fastest, today's cut, the smallest cut.
    """
    found = listed_pairs(question.profile, question.space, question.space.staleness_range(question.profile))
    costs = horizon_seconds(question, found, at)
    within = np.flatnonzero(costs <= (1.0 + EXACTNESS_MARGIN) * costs.min())
    cuts = found.cuts[within]
    order = (cuts, cuts != question.from_cut, costs[within], found.staleness[within], -found.bits[within])
    row = within[np.lexsort(order)[0]]
    chosen = int(found.staleness[row])
    cut, bits = int(found.cuts[row]), int(found.bits[row])
    return plan_of(question, at, cut, bits, range(chosen, chosen + 1), len(costs))
