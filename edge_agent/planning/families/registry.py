"""The families by name. A new family is a file of its own and its line here: the engine then has it, and `plan` and `simulate`
of a chain."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from edge_agent.planning.cost import Conditions, Loads, joined
from edge_agent.planning.families import chain, only, pair
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers import family as tiers
from edge_agent.planning.layout import Layout
from shared.errors import PlanError


class Family(Protocol):
    """Layouts of one kind: a module with these functions in it."""

    def is_for(self, question: Question) -> bool:
        """Tell whether the family has layouts for such a question. The other functions are called only then."""

    def listed(self, question: Question) -> tuple[list[Layout], Loads] | None:
        """Return all layouts that can be the best, with their loads; None where they are too many to be weighed all the time.

        PlanError where nothing of the kind may be chosen.
        """

    def bounded(self, question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
        """Yield layouts with the least seconds that a step of each can take, rising. It may end where no other one is better.

        PlanError where nothing of the kind may be chosen.
        """

    def permits(self, question: Question, layout: Layout) -> bool:
        """Tell whether a layout, of this kind or of another, may be chosen as one of this kind."""

    def neighbours(self, question: Question, layout: Layout, at: Conditions) -> Iterator[Layout]:
        """Yield layouts that may be chosen, and differ little from one of this kind; of another kind, none."""


FAMILIES: dict[str, Family] = {"pair": pair, "chain": chain, "tiers": tiers}


def families_of(question: Question) -> list[Family]:
    """Return the families that have layouts for a question."""
    if only.is_for(question):
        return [only]
    return [family for family in FAMILIES.values() if family.is_for(question)]


def listed(question: Question) -> tuple[list[Layout], Loads] | None:
    """Return all layouts that can be the best, of every family for the question; None where one of them has too many. PlanError
    where none of them has any that may be chosen."""
    found, refusals = list[tuple[list[Layout], Loads]](), list[PlanError]()
    for family in families_of(question):
        try:
            each = family.listed(question)
        except PlanError as nothing:
            refusals.append(nothing)
            continue
        if each is None:
            return None
        found.append(each)
    if not found:
        raise nothing_of(question, refusals)
    every = [layout for layouts, _ in found for layout in layouts]
    first = sorted({layout: row for row, layout in reversed(list(enumerate(every)))}.values())
    return [every[row] for row in first], joined([loads for _, loads in found]).take(first)


def permits(question: Question, layout: Layout) -> bool:
    """Tell whether a layout may be chosen."""
    return any(family.permits(question, layout) for family in families_of(question))


def neighbours(question: Question, layout: Layout, at: Conditions) -> Iterator[Layout]:
    """Yield layouts that may be chosen, and differ little from this one."""
    for family in families_of(question):
        yield from family.neighbours(question, layout, at)


def nothing_of(question: Question, refusals: Sequence[PlanError]) -> PlanError:
    """Return the error where no family has anything to choose: the first refusal of one of them."""
    names = ", ".join(question.profile.names)
    return next(iter(refusals), PlanError(f"no layout of {names} can be chosen; no family has any"))
