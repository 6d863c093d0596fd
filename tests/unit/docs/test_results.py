"""The page of results: it quotes measurements, with the command of each."""

import re

import pytest

from tests.conftest import ROOT

ROWS = ROOT / "benchmarks" / "results"
RESULTS = ROOT / "docs" / "results.md"
MOST_WORDS = 2500
CODE_OR_TABLE = re.compile(r"^```[\s\S]*?^```$|^\|.*$", re.MULTILINE)
FIGURE = re.compile(r"\d+(?:\.\d+)?")


def sections_with_rows():
    """Read the sections of the results that name a file of rows: the heading, the text, the file."""
    for section in RESULTS.read_text().split("\n## ")[1:]:
        for rows in re.findall(r"rows in `(\w+\.md)`", section)[:1]:
            yield pytest.param(section, rows, id=section.splitlines()[0])


def test_the_results_are_told_in_few_words():
    assert len(CODE_OR_TABLE.sub("", RESULTS.read_text()).split()) <= MOST_WORDS


@pytest.mark.parametrize(("section", "rows"), list(sections_with_rows()))
def test_every_figure_of_a_table_stands_in_the_rows_that_it_is_quoted_from(section, rows):
    measured = set(FIGURE.findall((ROWS / rows).read_text()))
    quoted = {figure for line in section.splitlines() if line.startswith("|") for figure in FIGURE.findall(line)}
    goals = {figure for line in section.splitlines() for figure in re.findall(r"goal, ms.*|[Gg]oal[^.;]*", line)}
    assert quoted - measured <= set(FIGURE.findall(" ".join(goals))), "neither measured nor a goal"


def test_every_file_of_rows_begins_with_the_command_that_makes_it():
    for path in ROWS.glob("*.md"):
        first = path.read_text().splitlines()[0]
        assert re.search(rf"benchmarks\.(\w+\.)?{path.stem}\b", first), path.name
