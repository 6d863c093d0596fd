"""The families by name. A new family is a file of its own and its line here: `plan`, `simulate` and the engine then have it."""

from collections.abc import Iterator
from typing import Protocol

from shared.planning.cost import Conditions, Loads
from shared.planning.families import chain, pair, tiers
from shared.planning.families.question import Question
from shared.planning.layout import Layout


class Family(Protocol):
    """Layouts of one kind: a module with these functions in it. Each has nothing where the question is of another kind."""

    def listed(self, question: Question) -> tuple[list[Layout], Loads] | None:
        """Return all layouts that can be the best, with their loads; None where they are too many to be weighed all the time.

        PlanError where nothing of the kind may be chosen.
        """

    def bounded(self, question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
        """Yield layouts with the least seconds that a step of each can take, rising. It may end where no other one is better.

        PlanError where nothing of the kind may be chosen.
        """


FAMILIES: dict[str, Family] = {"pair": pair, "chain": chain, "tiers": tiers}


def listed(question: Question) -> tuple[list[Layout], Loads] | None:
    """Return all layouts that can be the best, of the family that the question is of; None where they are too many. PlanError
    where nothing may be chosen."""
    each = (family.listed(question) for family in FAMILIES.values())
    return next((found for found in each if found is not None), None)
