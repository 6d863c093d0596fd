"""The names on pages: exit codes, the version of the protocol, options and benchmarks exist."""

import importlib
import re

import pytest
import typer.main

from benchmarks.rivals.moving import __main__ as moving
from cloud_trainer import main as trainer_main
from edge_agent import main as agent_main
from shared.errors import ExitCode
from shared.version import PROTOCOL_VERSION
from tests.conftest import ROOT

PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ROWS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
BENCHMARK = re.compile(r"python -m (benchmarks\.[\w.]+)([^`\n]*)")
OPTION = re.compile(r"`(--[a-z][a-z-]*)")
OF_OTHERS = {"--help", "--extra-index-url", "--format", "--target", "--read-only", "--shm-size"}
"""Options of every command, of pip and of docker."""


def test_the_report_of_the_doctor_shows_the_protocol_of_today():
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"version (\d+) on both sides", page) == [str(PROTOCOL_VERSION)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_that_a_page_names_exists(page):
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


@pytest.mark.parametrize("page", [*PAGES, *ROWS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_benchmark_that_a_page_names_is_there_with_its_options(page):
    for module, arguments in BENCHMARK.findall(page.read_text()):
        place = ROOT.joinpath(*module.rstrip(".").split("."))
        source = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__main__.py"
        assert source.exists(), module
        assert {*re.findall(r"--[a-z][a-z-]*", arguments)} <= _options_of(source), module


def _options_of(source):
    """Return the options of a benchmark: those that its source says, or those of its application."""
    if "typer.Typer(" not in source.read_text():
        return {*re.findall(r'"(--[a-z][a-z-]*)"', source.read_text())}
    module = importlib.import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
    return {option for parameter in typer.main.get_command(module.app).params for option in parameter.opts}


def test_every_option_that_a_page_names_alone_is_one_of_our_commands():
    apps = [typer.main.get_command(module.app) for module in (agent_main, trainer_main)]
    groups = [*apps, *(one for app in apps for one in app.commands.values() if hasattr(one, "commands"))]
    commands = [command for group in groups for command in group.commands.values()]
    commands.append(typer.main.get_command(moving.app))
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    for page in PAGES:
        text = "\n".join(line for line in page.read_text().splitlines() if "benchmarks." not in line)
        assert set(OPTION.findall(text)) <= known | OF_OTHERS, page.name
