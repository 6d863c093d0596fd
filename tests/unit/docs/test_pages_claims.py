"""The pages agree with the program and with what was measured: figures, benchmarks, options."""

import re

import pytest
import typer.main

from cloud_trainer import main as trainer_main
from edge_agent import main as agent_main
from tests.conftest import ROOT

BENCHMARKS, DOCS = ROOT / "benchmarks", ROOT / "docs"
RESULTS = DOCS / "results.md"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", *(BENCHMARKS / "results").glob("*.md")])
MOST_WORDS = 2500
CODE_OR_TABLE = re.compile(r"^```.*?^```$|^\|.*$", re.DOTALL | re.MULTILINE)
BENCHMARK = re.compile(r"python -m (benchmarks\.[\w.]+)([^`\n]*)")
FIGURE = re.compile(r"\d+(?:\.\d+)?")
OF_OTHERS = {"--help", "--extra-index-url", "--format", "--target", "--read-only"}
"""Options of every command, of pip and of docker."""
OPTION = re.compile(r"`(--[a-z][a-z-]*)")


def names_of(paths):
    return [path.relative_to(ROOT).as_posix() for path in paths]


def sections_with_rows():
    """The sections of the results that name a file of rows: the heading, the text, the file."""
    for section in RESULTS.read_text().split("\n## ")[1:]:
        for rows in re.findall(r"rows in `(\w+\.md)`", section)[:1]:
            yield pytest.param(section, rows, id=section.splitlines()[0])


def test_the_results_are_told_in_few_words():
    assert len(CODE_OR_TABLE.sub("", RESULTS.read_text()).split()) <= MOST_WORDS


@pytest.mark.parametrize(("section", "rows"), list(sections_with_rows()))
def test_every_figure_of_a_table_stands_in_the_rows_that_it_is_quoted_from(section, rows):
    measured = set(FIGURE.findall((BENCHMARKS / "results" / rows).read_text()))
    quoted = {figure for line in section.splitlines() if line.startswith("|") for figure in FIGURE.findall(line)}
    goals = {figure for line in section.splitlines() for figure in re.findall(r"goal, ms.*|[Gg]oal[^.;]*", line)}
    assert quoted - measured <= set(FIGURE.findall(" ".join(goals))), "neither measured nor a goal"


@pytest.mark.parametrize("page", PAGES, ids=names_of(PAGES))
def test_every_benchmark_that_a_page_names_is_there_with_its_options(page):
    for module, arguments in BENCHMARK.findall(page.read_text()):
        place = ROOT.joinpath(*module.rstrip(".").split("."))
        source = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__main__.py"
        assert source.exists(), module
        for option in re.findall(r"--[a-z][a-z-]*", arguments):
            assert f'"{option}"' in source.read_text(), f"{module} has no {option}"


def test_every_file_of_rows_begins_with_the_command_that_makes_it():
    for path in (BENCHMARKS / "results").glob("*.md"):
        first = path.read_text().splitlines()[0]
        assert f"benchmarks.{path.stem}" in first, path.name


def test_every_option_that_a_page_names_alone_is_one_of_our_commands():
    apps = [typer.main.get_command(module.app) for module in (agent_main, trainer_main)]
    commands = [command for app in apps for command in app.commands.values()]
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    for page in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        text = "\n".join(line for line in page.read_text().splitlines() if "benchmarks." not in line)
        assert set(OPTION.findall(text)) <= known | OF_OTHERS, page.name
