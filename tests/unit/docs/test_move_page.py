"""The page about several trainers: its example, its policies and its list of candidates."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from benchmarks.rivals.moving import MOVE_POLICY_NAMES
from benchmarks.rivals.moving.__main__ import app
from edge_agent.planning.candidates import parse_candidates
from tests.conftest import ROOT
from tests.support.pages import blocks


@pytest.mark.slow
def test_the_table_is_printed_by_the_command_above_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = [block.text for block in blocks("move.md") if "rivals.moving" in block.text]
    done = CliRunner().invoke(app, shlex.split(command)[3:])
    assert done.exit_code == 0, done.output
    shown = next(block.text for block in blocks("move.md") if block.text.startswith("policy"))
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_every_policy_is_told():
    page = (ROOT / "docs" / "move.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([a-z-]+)`", page.split("## The policies")[1])) >= set(MOVE_POLICY_NAMES)


def test_the_list_of_candidates_can_be_read():
    (shown,) = [block.text for block in blocks("move.md") if block.language == "json"]
    assert len(parse_candidates(json.loads(shown), "move.md")) == 1
