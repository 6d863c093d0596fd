"""The return of workers that were left out, or from a layout that the profile does not know, as recovery may choose it.

Nothing can be predicted of such a layout: what its steps take is counted. All workers restore a checkpoint for a return, so it
has to be worth more than other changes.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from edge_agent.planning.cost import Conditions
from edge_agent.planning.engine.decision import Decision, Reason
from edge_agent.planning.families.question import Question
from edge_agent.planning.plan import Plan
from edge_agent.planning.search import best

LEAST_WON_SECONDS = 30.0
"""Least gain of a return."""


def return_search(question: Question, at: Conditions, back: Collection[str]) -> Callable[[], Plan] | None:
    """Return a search for the best layout, workers that are back among them; None for pinned cuts."""
    space = question.space
    if space.cuts is not None:
        return None
    workers = frozenset(question.permitted).union(back)
    return partial(best, replace(question, space=replace(space, workers=workers)), at)


def worthy_return(
    found: Plan, today_seconds: float, remaining_steps: float, margin: float, cause: str
) -> Decision | None:
    """Return the change to what such a search has found, if it is worth a checkpoint.

    today_seconds: of a step now. margin: part of them by which another layout has to be better. cause: see `Decision`.
    """
    won_seconds = (today_seconds - found.seconds_per_step) * remaining_steps
    is_better = found.seconds_per_step < (1.0 - margin) * today_seconds
    if not is_better or won_seconds <= LEAST_WON_SECONDS:
        return None
    return Decision(found.layout, found.seconds_per_step, today_seconds, 0.0, math.inf, Reason.WORKER, cause)
