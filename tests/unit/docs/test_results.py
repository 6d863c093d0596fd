"""The page of results: each claim has its figure, and the command that measures it again."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

ROWS = ROOT / "benchmarks" / "results"
RESULTS = ROOT / "docs" / "results.md"
MOST_WORDS = 1500
FIGURE = re.compile(r"\d+(?:\.\d+)?")
LINE = re.compile(r"^- .+(?:\n  .+)*", re.MULTILINE)
COMMAND = re.compile(r"- `python -m benchmarks\.([\w.]+)(.*?)`: (.+)")
CLAIM = re.compile(r"([^:]+): ([^(]+?)(?: \(([^)]+)\))?")


class Verdict(NamedTuple):
    """A claim of the page. goal: None where there was none; rows: what its command found."""

    claim: str
    measured: str
    goal: str | None
    rows: Path


def verdicts() -> Iterator[Verdict]:
    """Read the claims in order; semicolons part those of one command."""
    claims, _ = RESULTS.read_text(encoding="utf-8").split("## Why goals are missed")
    for line in LINE.findall(claims):
        command = COMMAND.fullmatch(" ".join(line.split()))
        assert command is not None, line
        module, options, said = command.groups()
        name = module.rpartition(".")[2]
        rows = ROWS / f"{options.split()[-1] if name == 'record' else name}.md"
        for one in said.split("; "):
            claim = CLAIM.fullmatch(one)
            assert claim is not None, one
            yield Verdict(claim[1], claim[2], claim[3], rows)


def test_the_results_are_told_in_few_words():
    assert len(RESULTS.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("verdict", list(verdicts()), ids=lambda verdict: verdict.claim)
def test_what_was_measured_stands_in_the_rows_of_its_command(verdict):
    found = set(FIGURE.findall(verdict.rows.read_text(encoding="utf-8")))
    assert set(FIGURE.findall(verdict.measured)) - found == set()


@pytest.mark.parametrize("verdict", list(verdicts()), ids=lambda verdict: verdict.claim)
def test_a_claim_with_a_goal_says_whether_it_is_kept(verdict):
    assert verdict.goal is None or re.search(r"kept|miss|the paper has", verdict.goal)


def test_every_file_of_rows_begins_with_the_command_that_makes_it():
    for path in ROWS.glob("*.md"):
        first = path.read_text().splitlines()[0]
        assert re.search(rf"benchmarks\.(\w+\.)?{path.stem}\b", first), path.name


def test_the_figures_of_the_comparison_stand_in_its_rows():
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    measured, _ = page.partition("## What it takes")[2].split("## What each has")
    rows = FIGURE.findall((ROWS / "compare.md").read_text(encoding="utf-8"))
    table = [line for line in measured.splitlines() if line.startswith("| ")]
    assert set(FIGURE.findall("".join(table))) - {*rows} == set()
