"""What the page on extending shows is done as it stands there, and keeps what the page promises.

The codec, the optimizer and the loss are written into a copy of the tree, and the checks of all of their kind run there; the
other examples are loaded and used.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from shared.codec import codec_of_bits, registry
from shared.execution.split import Scheme, split_simulation
from shared.model.chain import build_chain
from shared.planning import PLANNERS, LinkTrace, Rates, SearchSpace, Trace, compare
from shared.planning.comparison import CONTESTANTS, run_held
from shared.training.optimizers import OptimizerConfig
from shared.training.policies import POLICIES
from shared.training.recipe import Recipe, ScheduleConfig
from tests.conftest import ROOT
from tests.support.pages import blocks
from tests.support.planning_cases import small_profile

CPU = torch.device("cpu")
EXAMPLES = {block.title: block.text for block in blocks("extending.md") if block.language == "python"}
SHOWN = {"signs.py", "asgd.py", "halves.py", "dropping.py", "huber.py"}


def shown(file: str, monkeypatch) -> ModuleType:
    """The file of the page, imported as the module that it would be."""
    (title,) = [title for title in EXAMPLES if title.endswith(f"/{file}")]
    name = title.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(EXAMPLES[title], title, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the tree in which a reader has written every file of the page and made every change."""
    copy = tmp_path_factory.mktemp("extended")
    for folder in ("shared", "edge_agent", "cloud_trainer", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "isthmus.py"):
        shutil.copy(ROOT / file, copy)
    for title, text in EXAMPLES.items():
        (copy / title).write_text(text)
    for block in blocks("extending.md"):
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


def recipe(**changes) -> Recipe:
    told = {"optimizer": OptimizerConfig(learning_rate=0.1), "schedule": ScheduleConfig(), "loss": "mse", "seed": 0}
    return Recipe(**told | {"steps_per_epoch": 8, "total_steps": 8} | changes)


def chain():
    torch.manual_seed(3)
    return build_chain(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), torch.ones(8, 6))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)


def simulated(scheme, told, steps):
    """The module after so many steps across a cut, and each step's loss."""
    built = chain()
    simulation = split_simulation(built, 2, told, scheme, CPU)
    losses = simulation.train(0, steps, (batch(step) for step in range(steps)))
    return built.module.state_dict(), [loss.loss for loss in losses]


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


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
        ("huber", ["tests/unit/shared/training/test_losses.py"]),
    ],
    ids=["codec", "optimizer", "optimizer on a device", "optimizer across a cut", "loss"],
)
def test_the_checks_of_all_of_their_kind_pass_for_those_of_the_page(tree, chosen, suites):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *suites]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_codec_trains_and_is_exchanged_for_others(monkeypatch):
    (codec,) = shown("signs.py", monkeypatch).CODECS
    monkeypatch.setitem(registry.CODECS, codec.name, codec)
    assert codec_of_bits(8, like="signs1") == "uniform8"
    assert codec_of_bits(32, like="signs1") == "fp32"
    trained, _ = simulated(Scheme(codec="signs1"), recipe(), 2)
    assert not same(trained, simulated(Scheme(), recipe(), 2)[0])


def test_a_planner_chooses_and_is_compared(monkeypatch):
    halves = shown("halves.py", monkeypatch).halves
    monkeypatch.setitem(PLANNERS, "halves", halves)
    monkeypatch.setitem(CONTESTANTS, "halves", lambda setting: run_held("halves", setting))
    profile, rates = small_profile(), Rates(8e6, 8e6)
    assert PLANNERS["halves"](profile, rates, SearchSpace()).deployment.cut == len(profile) // 2
    (result,) = compare(profile, LinkTrace(Trace.constant(8e6), Trace.constant(8e6)), SearchSpace(), 60.0, ("halves",))
    assert result.run is not None
    assert result.run.start.cut == len(profile) // 2
    assert not result.run.switches, "what it chose is held"


def test_a_backward_policy_trains(monkeypatch):
    monkeypatch.setitem(POLICIES, "dropping", shown("dropping.py", monkeypatch).Dropping)
    for staleness in (0, 2):
        dropped, losses = simulated(Scheme(staleness, "dropping"), recipe(), 6)
        assert len(losses) == 6
        assert not same(dropped, simulated(Scheme(staleness), recipe(), 6)[0])
