"""The example on the engine's page: the output of its command."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from edge_agent.main import app
from tests.conftest import ROOT
from tests.support.pages import blocks


@pytest.fixture
def simulate(monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = [block.text for block in blocks("engine.md") if block.language == "sh"]

    def run(*more):
        done = CliRunner().invoke(app, [*shlex.split(command)[1:], *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.mark.slow
def test_the_table_is_printed_by_the_command_above_it(simulate):
    shown = next(block.text for block in blocks("engine.md") if block.text.startswith("planner"))
    assert [line.rstrip() for line in simulate().splitlines()] == shown.splitlines()


@pytest.mark.slow
def test_the_changes_are_those_of_the_engine(simulate):
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    (run,) = json.loads(simulate("--planner", "greedy", "--json"))
    changes = [(f"{change['seconds']:.0f}", str(change["cut"])) for change in run["switches"]]
    assert re.findall(r"^\| (\d+) \| cut (\d) \|", page, re.MULTILINE) == changes
