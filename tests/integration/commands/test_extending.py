"""Examples of CONTRIBUTING.md are carried out as they stand there, and keep the promises of the page.

The examples are written into a copy of the tree, where the checks of all of their kind run, and extended_tree.py.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.pages import blocks

pytestmark = pytest.mark.slow

EXAMPLES = {block.title: block.text for block in blocks("../CONTRIBUTING.md") if block.language == "python"}
SHOWN = {"signs.py", "asgd.py", "halves.py", "turned.py", "dropping.py"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the tree in which a reader has written every file of the page and made every change."""
    copy = tmp_path_factory.mktemp("extended")
    for folder in ("shared", "edge_agent", "cloud_trainer", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "isthmus.py", "isthmus_entry_points.py"):
        shutil.copy(ROOT / file, copy)
    for title, text in EXAMPLES.items():
        (copy / title).write_text(text)
    for block in blocks("../CONTRIBUTING.md"):
        if block.language == "diff":
            apply(block.text, copy / block.title)
    return copy


def apply(changes: str, file: Path) -> None:
    """Make the changes of a diff whose parts stand between lines of `@@`."""
    text = file.read_text()
    for part in changes.split("@@\n"):
        lines = part.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
        assert text.count(before) == 1, f"{file} has no such place: {before}"
        text = text.replace(before, after)
    file.write_text(text)


def test_every_example_of_the_page_is_tried():
    assert {title.rpartition("/")[2] for title in EXAMPLES} == SHOWN


def test_the_examples_pass_the_style_checks(tree):
    files = list(EXAMPLES)
    for check in (("check",), ("format", "--check")):
        done = subprocess.run([sys.executable, "-m", "ruff", *check, *files], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("chosen", "suites"),
    [
        ("signs", ["tests/unit/shared/codec/test_every_codec.py", "tests/unit/shared/codec/test_registry.py"]),
        ("asgd or every_optimizer_is_tried or a_key_means", ["tests/unit/shared/training/test_optimizers.py"]),
        ("asgd", ["tests/unit/shared/training/test_device.py"]),
        ("mlp-asgd or every_optimizer_is_tried", ["tests/integration/training/test_exactness.py"]),
        ("halves", ["tests/unit/edge_agent/planning/test_planners.py"]),
        ("huber", ["tests/unit/shared/training/test_losses.py"]),
        ("", ["tests/integration/commands/extended_tree.py"]),
    ],
    ids=["codec", "optimizer", "optimizer on a device", "optimizer across a cut", "planner", "loss", "use"],
)
def test_the_checks_of_all_of_their_kind_pass_for_those_of_the_page(tree, chosen, suites):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *suites]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
