"""The families by name. A new family is a file of its own and its line here."""

from collections.abc import Iterator
from typing import Protocol

from shared.planning.cost import Conditions
from shared.planning.families import chain, pair
from shared.planning.families.question import Question
from shared.planning.layout import Layout


class Family(Protocol):
    """Layouts of one kind: a module with this function in it."""

    def bounded(self, question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
        """Yield layouts with the least seconds that a step of each can take, rising. It may end where no other one is better.

        Yields nothing where the question is of another kind. PlanError where nothing of the kind may be chosen.
        """


FAMILIES: dict[str, Family] = {"pair": pair, "chain": chain}
