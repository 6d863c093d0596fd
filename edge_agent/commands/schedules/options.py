"""The options of a group: its members, and the strategies of its exchange."""

from collections.abc import Sequence
from typing import Annotated

import typer

from edge_agent.planner_names import STRATEGY_NAMES
from shared.errors import PlanError

GROUP = "The group"
"""Panel of the help."""
ALL = "all"
Members = Annotated[
    int,
    typer.Option("--members", help="Members of the group, which share the trainer's link.", rich_help_panel=GROUP),
]


def named(strategies: Sequence[str]) -> tuple[str, ...]:
    """Return the strategies that `--strategy` names, each once. Raises PlanError."""
    if unknown := [name for name in strategies if name not in (ALL, *STRATEGY_NAMES)]:
        raise PlanError(f"--strategy is {unknown[0]!r}; it must be {ALL}, or one of {', '.join(STRATEGY_NAMES)}")
    return STRATEGY_NAMES if ALL in strategies else tuple(dict.fromkeys(strategies))
