"""`edge-agent doctor`: its output, and its exit codes."""

import io
import json

import pytest
from rich.console import Console

from edge_agent.doctor.command import check_fitness, render_table
from edge_agent.doctor.device import (
    examine_device,
)
from edge_agent.doctor.examine import WAY_TO_THE_TRAINER
from edge_agent.doctor.finding import Finding, Status, fine, fix
from shared.errors import ExitCode, UnfitError
from tests.conftest import ROOT
from tests.support.running import edge_config

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
FINDINGS = [
    fine("python", "3.11.7"),
    Finding("memory", ADVICE, "400.0 MB free", "end other programs"),
    fix("name", "[red]gpu[/]: no such name", "correct trainer.address"),
]


def test_only_what_must_be_fixed_ends_with_a_code():
    check_fitness(FINDINGS[:2])
    with pytest.raises(UnfitError, match="to be fixed before this device can train: name") as ended:
        check_fitness(FINDINGS)
    assert ended.value.exit_code is ExitCode.UNFIT


def test_the_table_shows_what_a_peer_says_as_it_is():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(FINDINGS))
    text = console.export_text()
    assert "[red]gpu[/]: no such name" in text
    assert "advice" in text


def test_trainers_with_long_names_are_told_apart_on_a_narrow_terminal():
    console = Console(width=80, record=True, file=io.StringIO())
    result = "many words that ask for as much room as there is, and for some more of it"
    console.print(render_table([Finding(f"{'n' * 60}-{digit}: name", FIX, result, result) for digit in "12"]))
    text = console.export_text()
    assert "-1" in text
    assert "-2" in text


def test_every_check_and_status_is_documented():
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    checks = [finding.check for finding in examine_device(edge_config())]
    rows = [
        cell.strip() for line in page.splitlines() if line.startswith("| ") for cell in line.split("|")[1].split(",")
    ]
    assert {*checks, *WAY_TO_THE_TRAINER, "placement", "trainer"} <= set(rows)
    assert {f"`{status}`" for status in Status} <= set(rows)


def test_json_has_the_fields_that_are_documented(capsys, monkeypatch):
    from edge_agent.doctor import command, examine

    async def found(_config):
        return FINDINGS

    monkeypatch.setattr(examine, "examine", found)
    with pytest.raises(UnfitError):
        command.doctor(None, ["compute.device=cpu"], as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed[1] == {
        "check": "memory",
        "status": "advice",
        "result": "400.0 MB free",
        "remedy": "end other programs",
    }
