"""The only layout that a space allows, of any kind."""

from collections.abc import Iterator

from edge_agent.planning.cost import Conditions, Loads, conditions_of
from edge_agent.planning.families.loads_at import loads_at
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout


def is_for(question: Question) -> bool:
    """See `Family.is_for`."""
    return question.space.only is not None


def listed(question: Question) -> tuple[list[Layout], Loads]:
    """Return it, with its loads."""
    layouts = [_only(question)]
    return layouts, loads_at(question, layouts, conditions_of(question.profile))


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield it with its seconds."""
    layouts = [_only(question)]
    yield float(loads_at(question, layouts, at).seconds(at)[0]), layouts[0]


def permits(question: Question, layout: Layout) -> bool:
    """Tell whether a layout is this one."""
    return layout == question.space.only


def neighbours(_question: Question, _layout: Layout, _at: Conditions) -> Iterator[Layout]:
    """Yield none."""
    return iter(())


def _only(question: Question) -> Layout:
    assert question.space.only is not None
    return question.space.only
