"""The page of the coordinator's table: what the command prints, and an answer for whatever is told in whatever state."""

import dataclasses
import inspect
import itertools
import re
import runpy
import typing
from collections import defaultdict

import pytest

from edge_agent.coordinator import CoordinatorState, Phase, decide, events
from shared import errors
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "recovery.md"
MARKED = re.compile(
    r"<!-- begin of python -m edge_agent\.coordinator -->\n\n(.*)\n<!-- end of python -m edge_agent\.coordinator -->",
    re.DOTALL,
)
EVENTS = [one for one in vars(events).values() if dataclasses.is_dataclass(one)]
FAILURES = [one("it") for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.IsthmusError)]
VALUES = {
    bool: [False, True],
    int: [0, 7],
    float: [0.0, 1000.0],
    float | None: [None, 0.0, 1000.0],
    errors.IsthmusError: FAILURES,
    errors.IsthmusError | None: [None, *FAILURES],
}
"""Values of the fields of events: all that there are, or some on both sides of each limit."""


def table():
    """The table on the page."""
    (found,) = MARKED.findall(PAGE.read_text(encoding="utf-8"))
    return found


def answers_on_page():
    """The answers that the page names, by event and phase: the last one of a row is for all phases that it does not name."""
    named, event = defaultdict(set), ""
    _, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table().splitlines())
    for first, _, answers in rows:
        event, left = first or event, {phase.value for phase in Phase}
        *some, last = answers.split("; ")
        for part in some:
            phases, _, answer = part.partition(": ")
            for phase in phases.split(", "):
                left.remove(phase)
                named[event, phase].add(answer)
        for phase in left:
            named[event, phase].add(last.removeprefix("else ") if some else last)
    return named


def instances(kind):
    """One of a dataclass for each combination of values of its fields."""
    types = typing.get_type_hints(kind)
    values = [VALUES[types[field.name]] for field in dataclasses.fields(kind)]
    return [kind(*chosen) for chosen in itertools.product(*values)]


def states():
    """The states that differ in what a decision may ask of them."""
    pasts = [
        (None, 0, 0, None),
        (errors.RefusedError("no"), 1, 1, 5),
        (errors.ProtocolError("what?"), 3, 0, 5),
        (errors.SessionLostError("restarted"), 0, 0, None),
    ]
    truths = itertools.product((False, True), repeat=3)
    for phase, (waits, back, again), past in itertools.product(Phase, truths, pasts):
        yield CoordinatorState(phase, waits, back, *past, again)


def test_the_page_shows_what_the_command_prints(capsys):
    runpy.run_module("edge_agent.coordinator", run_name="__main__")
    assert table() == capsys.readouterr().out


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_whatever_is_told_in_whatever_state_the_page_names_the_answer_and_no_other(kind):
    name, named, told = kind.__doc__.splitlines()[0].removesuffix("."), answers_on_page(), instances(kind)
    given = {phase: set() for phase in Phase}
    for state, event in itertools.product(states(), told):
        answer = decide(state, event)
        assert decide(state, event) == answer, "nothing else counts"
        given[state.phase].add(answer.action.value)
    assert given == {phase: named[name, phase.value] for phase in Phase}
