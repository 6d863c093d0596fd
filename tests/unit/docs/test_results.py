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
COMMAND = re.compile(r"`python -m benchmarks\.([\w.]+)(.*)`")


class Verdict(NamedTuple):
    """A row of the page. rows: what its command found."""

    claim: str
    measured: str
    goal: str
    rows: Path


def verdicts() -> Iterator[Verdict]:
    """Read the rows of claims in order; one that says `the same` has the command of the row before."""
    rows = None
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0] != "claim" and not cells[0].startswith("---"):
            if named := COMMAND.search(cells[3]):
                module, options = named[1].rpartition(".")[2], named[2]
                rows = ROWS / f"{options.split()[-1] if module == 'record' else module}.md"
            assert rows is not None, line
            assert named or cells[3].startswith("the same"), line
            yield Verdict(*cells[:3], rows)


def test_the_results_are_told_in_few_words():
    assert len(RESULTS.read_text(encoding="utf-8").replace("|", "").split()) <= MOST_WORDS


@pytest.mark.parametrize("verdict", list(verdicts()), ids=lambda verdict: verdict.claim)
def test_what_was_measured_stands_in_the_rows_of_its_command(verdict):
    found = set(FIGURE.findall(verdict.rows.read_text(encoding="utf-8")))
    assert set(FIGURE.findall(verdict.measured)) - found == set()


@pytest.mark.parametrize("verdict", list(verdicts()), ids=lambda verdict: verdict.claim)
def test_a_claim_says_whether_its_goal_is_kept(verdict):
    assert re.search(r"kept|miss|no goal|the paper has", verdict.goal)


def test_every_file_of_rows_begins_with_the_command_that_makes_it():
    for path in ROWS.glob("*.md"):
        first = path.read_text().splitlines()[0]
        assert re.search(rf"benchmarks\.(\w+\.)?{path.stem}\b", first), path.name
