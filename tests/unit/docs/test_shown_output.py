"""Pages whose examples are the output of their commands."""

import json
import re
import shlex
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from edge_agent.main import app
from edge_agent.planner_names import STRATEGY_NAMES
from edge_agent.planning.schedules import parse_layers
from tests.conftest import ROOT
from tests.support.pages import blocks

SHOWN = [
    pytest.param(command.text, shown.text, id=f"{page}-{command.text.split()[1]}")
    for page in ("chain.md", "groups.md", "tiers.md")
    for command, shown in pairwise(blocks(page))
    if command.language == "sh" and not command.title
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_prints_what_stands_below_it(monkeypatch, command, shown):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_the_layers_of_the_page_of_groups_can_be_read():
    (shown,) = [block.text for block in blocks("groups.md") if block.language == "json"]
    assert len(parse_layers(json.loads(shown), "groups.md")) == 1


def test_every_strategy_is_told():
    page = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^- `([a-z]+)`: ", page, re.MULTILINE)) == STRATEGY_NAMES
