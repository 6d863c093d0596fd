"""The pages of chains and of three tiers: their examples are the output of their commands."""

import shlex

import pytest
from typer.testing import CliRunner

from edge_agent.main import app
from tests.conftest import ROOT
from tests.support.pages import blocks

PAGES = [blocks(name) for name in ("chain.md", "tiers.md")]
SHOWN = [
    (block.text, page[index + 1].text)
    for page in PAGES
    for index, block in enumerate(page)
    if block.language == "sh" and not block.title
]


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command.split()[1] for command, _ in SHOWN])
def test_a_command_prints_what_stands_below_it(monkeypatch, command, shown):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
