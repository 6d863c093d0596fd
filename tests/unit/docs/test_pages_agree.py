"""What pages say of codes, versions and files is what the program has."""

import re

import pytest

from shared.errors import ExitCode
from shared.version import PROTOCOL_VERSION
from tests.conftest import ROOT

PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]


def test_the_report_of_the_doctor_shows_the_protocol_of_today():
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"version (\d+) on both sides", page) == [str(PROTOCOL_VERSION)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_that_a_page_names_is_one(page):
    named = re.findall(r"(?:exit )?\[?code (\d+)\]?", page.read_text(encoding="utf-8"))
    assert {int(code) for code in named} <= {code.value for code in ExitCode}


def test_recovery_says_with_which_codes_each_side_stops():
    page = " ".join((ROOT / "docs" / "recovery.md").read_text(encoding="utf-8").split())
    (stopping,) = re.findall(r"## Stopping (.*?) ## ", page)
    edge, trainer = stopping.split("SIGTERM at the trainer")
    assert f"[code {ExitCode.TERMINATED:d}]" in edge
    assert f"the trainer exits with {ExitCode.OK:d}" in trainer
    (diverging,) = re.findall(r"## A training that diverges (.*?) ## ", page)
    assert f"[exit code {ExitCode.DIVERGED:d}]" in diverging
