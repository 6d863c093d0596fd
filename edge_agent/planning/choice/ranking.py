"""The ranking of candidates: for each trainer the best cut, bits and K by the cost model, and the device alone beside them.

All candidates are weighed at once: one table of layouts, under as many conditions as there are candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edge_agent.planning.choice.candidates import Candidate, conditions_for
from edge_agent.planning.cost import Conditions, Times
from edge_agent.planning.families.pair import Pairs, listed_pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import Floats, Ints
from shared.errors import PlanError

ALONE_CONDITIONS = Conditions(np.ones((2, 2)), np.zeros((2, 2)), np.ones(2))
"""Conditions of the device alone, which uses no link."""


@dataclass(frozen=True)
class Ranked:
    """A candidate with the best layout for it."""

    name: str
    layout: Layout
    """The layout, with the names of the profile's workers."""
    cut: int
    bits: int
    seconds_per_step: float


class CandidateCosts:
    """The costs of n layouts with any trainer: those that share a step with it, and the device alone if that may be chosen.

    Rows are in the order in which equals are preferred: the smallest cut, then the most bits, then the least K.
    """

    def __init__(self, question: Question) -> None:
        """question: of the device and one trainer, whose times a candidate's factor multiplies. PlanError for others, and where
        nothing may be chosen."""
        if not question.is_pair:
            raise PlanError(
                "candidates are trainers for one cut, so the profile must be of two workers and have max_staleness; measure "
                "one with edge-agent profile"
            )
        self.question = question
        staleness = question.space.best_staleness(question.profile)
        found = listed_pairs(question.profile, question.space, staleness)
        order = np.lexsort((found.staleness, -found.bits, found.cuts))
        self.pairs = Pairs(
            question.profile, found.cuts[order], found.bits[order], found.staleness[order], found.loads.take(order)
        )
        self.is_alone = self.pairs.cuts == len(question.profile)
        """True for the device alone, shape (n,)."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.pairs)

    @cached_property
    def whole_seconds(self) -> float:
        """Return the seconds of a step of the whole model on the profile's trainer, or of as many blocks as were measured."""
        rest = self.question.profile.workers[1].replayed[:, -1]
        return float(rest[np.isfinite(rest)][0])

    @cached_property
    def device_seconds(self) -> float:
        """Return the seconds of a step of the whole model on the device, in proportion where fewer blocks were measured."""
        edge = self.question.profile.workers[0].replayed[0]
        cut = int(np.flatnonzero(np.isfinite(edge))[-1])
        return float(edge[cut]) * len(self.question.profile) / cut

    def times(self, at: Conditions) -> Times:
        """Return the times of each layout with each of N trainers, shape (N, n)."""
        return self.pairs.loads.at(at)

    def shared_seconds(self, at: Conditions) -> Floats:
        """Return the seconds a step with each of N trainers, shape (N, n); infinite for the device alone."""
        return np.where(self.is_alone, np.inf, self.pairs.loads.seconds(at))

    def alone(self, device_factor: float = 1.0) -> tuple[int, float] | None:
        """Return the row of the device alone, and its seconds a step; None if it may not be chosen."""
        if not self.is_alone.any():
            return None
        at = replace(ALONE_CONDITIONS, factors=np.array([device_factor, 1.0]))
        seconds = np.where(self.is_alone, self.pairs.loads.seconds(at), np.inf)
        row = int(np.argmin(seconds))
        return row, float(seconds[row])

    def best_rows(self, at: Conditions) -> tuple[Ints, Floats]:
        """Return the best layout with each of N trainers, and its seconds a step; infinite where none may be chosen."""
        seconds = self.shared_seconds(at)
        rows: Ints = np.argmin(seconds, axis=-1)
        return rows, np.take_along_axis(seconds, rows[:, None], axis=-1)[:, 0]

    def row_of(self, cut: int, bits: int, staleness: int) -> int | None:
        """Return the row of a layout; None if it was not measured, or may not be chosen. bits: any for the device alone."""
        pairs = self.pairs
        same = (pairs.cuts == cut) & (pairs.staleness == staleness) & ((pairs.bits == bits) | self.is_alone)
        return int(np.argmax(same)) if same.any() else None


def rank(question: Question, candidates: Sequence[Candidate]) -> list[Ranked]:
    """Return every candidate with its best layout, the fastest first; of equals the device alone, then in the given order.

    Trainers with which no layout may be chosen are left out. PlanError as `CandidateCosts`.
    """
    costs = CandidateCosts(question)
    found = []
    if (alone := costs.alone()) is not None:
        found.append((question.profile.names[0], *alone))
    rows, seconds = costs.best_rows(conditions_for(candidates))
    found += [
        (candidate.name, row, each)
        for candidate, row, each in zip(candidates, rows.tolist(), seconds.tolist(), strict=True)
        if np.isfinite(each)
    ]
    ranked = [_ranked(costs, *each) for each in found]
    return sorted(ranked, key=lambda one: one.seconds_per_step)


def _ranked(costs: CandidateCosts, name: str, row: int, seconds: float) -> Ranked:
    pairs = costs.pairs
    return Ranked(name, pairs.layout(row), int(pairs.cuts[row]), int(pairs.bits[row]), seconds)
