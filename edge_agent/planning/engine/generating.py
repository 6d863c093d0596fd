"""The layouts worth weighing where all of them are too many: the best under several conditions, and their neighbours."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.engine.beliefs import Beliefs
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.registry import neighbours
from edge_agent.planning.layout import Layout
from edge_agent.planning.search import best
from shared.errors import PlanError

MOST_GENERATED, MOST_SIMULATED = 256, 64
"""Layouts of a pool at most. A look at them takes about as long as at those of two workers; divisions among three tiers are
simulated first, in 0.02 s each."""

SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 60.0
"""Time between two searches."""
MOVED_PART = 0.1
"""Part by which a rate or a device must have changed for another search before the longest time is over."""
LEADING = 3
"""Layouts whose neighbours are searched, too."""


def most_generated(question: Question) -> int:
    """Return the most layouts of a pool for a question."""
    return MOST_SIMULATED if question.is_tiers else MOST_GENERATED


@dataclass(frozen=True)
class Search:
    """One search for layouts that are worth weighing. It may run on any thread."""

    question: Question
    conditions: Sequence[Conditions]
    """Conditions whose best layouts are wanted, the most important first."""
    leading: Sequence[Layout] = ()
    """Layouts whose neighbours are wanted, too."""

    def run(self) -> list[Layout]:
        """Return the layouts, each once, the most important first. PlanError where nothing may be chosen at all."""
        now = self.conditions[0]
        first = best(self.question, now).layout
        every = chain(
            [first], self._best_of_each(), *(neighbours(self.question, one, now) for one in (first, *self.leading))
        )
        return list(islice(dict.fromkeys(every), most_generated(self.question)))

    def _best_of_each(self) -> Iterator[Layout]:
        """Yield the best under the other conditions, as far as they differ, of the first worker with each other one, and of the
        first alone."""
        first, *trainers = self.question.permitted
        space = self.question.space
        fewer = [replace(space, workers=frozenset({first, one})) for one in trainers] if len(trainers) > 1 else []
        others = list[Conditions]()
        for at in self.conditions[1:]:
            if all(_differ(one, at) for one in (self.conditions[0], *others)):
                others.append(at)
        asked = [(self.question, at) for at in others]
        asked += [(replace(self.question, space=each), self.conditions[0]) for each in fewer if space.cuts is None]
        for question, at in asked:
            try:
                yield best(question, at).layout
            except PlanError:  # these workers were not measured so
                continue


class Searches:
    """The searches of one run. Another is due when conditions have moved by a tenth, a minute has passed, or much else has
    changed."""

    def __init__(self) -> None:
        self._begun_seconds = -math.inf
        self._at: Conditions | None = None

    def forget(self) -> None:
        """Have the next search at once."""
        self._begun_seconds, self._at = -math.inf, None

    def next(self, seconds: float, question: Question, pool: Pool, beliefs: Beliefs) -> Search | None:
        """Return the search that is to begin now; None if none is due, or all layouts are weighed."""
        at = beliefs.now
        if pool.is_complete or not self._is_due(seconds, at):
            return None
        self._begun_seconds, self._at = seconds, at
        speeds = np.where(pool.allowed, beliefs.mean_speeds, 0.0)
        leading = [pool[row] for row in np.argsort(-speeds, kind="stable")[:LEADING]]
        return Search(question, beliefs.over_time(), leading)

    def _is_due(self, seconds: float, at: Conditions) -> bool:
        since = seconds - self._begun_seconds
        if self._at is None or since >= LONGEST_SECONDS:
            return True
        return since >= SHORTEST_SECONDS and _differ(self._at, at)


def _differ(before: Conditions, now: Conditions) -> bool:
    pairs = (before.rates, now.rates), (before.factors, now.factors)
    return any(bool((np.abs(new - old) > MOVED_PART * np.abs(old)).any()) for old, new in pairs)
