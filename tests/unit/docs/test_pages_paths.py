"""The paths on pages: every file and folder in backticks exists, and every picture is shown and drawn by a command."""

import re

import pytest

from deploy.site import pictures, schedules, step
from tests.conftest import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
IN_TREE = re.compile(rf"`((?:{'|'.join(map(re.escape, TOP))})/[\w./*-]*)`")
BARE = re.compile(r"\[`([\w.]+\.py)`")
SHOWN = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
MADE = ("run", "site")
"""Folders that runs and builds make. A clone lacks them."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    named = [name for name in IN_TREE.findall(page.read_text(encoding="utf-8")) if name.split("/")[0] not in MADE]
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_in_brackets_has_its_folder(page):
    assert BARE.findall(page.read_text(encoding="utf-8")) == []


def test_the_way_of_a_step_is_drawn_by_its_script():
    assert pictures.STEP.read_text(encoding="utf-8") == step.drawn()


def test_the_schedules_of_a_group_are_drawn_by_their_script():
    assert pictures.SCHEDULES.read_text(encoding="utf-8") == schedules.drawn()


def test_pages_show_every_picture_and_no_other_and_a_command_draws_each():
    shown = {
        (page.parent / name).resolve() for page in PAGES for name in SHOWN.findall(page.read_text(encoding="utf-8"))
    }
    there = {path for path in pictures.ASSETS.iterdir() if path.suffix in (".svg", ".png")}
    drawn = [picture for _, made in pictures.COMMANDS.values() for picture in made]
    assert shown == there == set(drawn)
    assert len(drawn) == len(set(drawn))


def test_a_picture_is_quick_to_load():
    assert [path.name for path in pictures.ASSETS.iterdir() if path.stat().st_size > 150_000] == []
