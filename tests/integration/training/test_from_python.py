"""A run from Python, as a notebook makes it: what it is told while it trains."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from isthmus import train
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits
from tests.support.running import ROOT, edge_config


def test_progress_is_told_after_every_step_with_figures_that_are_known():
    seen = []

    def note(progress):
        seen.append((progress.steps, progress.total_steps, f"{progress.loss:.3f}", progress.step_time.recent))

    train(edge_config(*flags("mlp", "sgd"), "trainers=[]", "training.max_steps=5"), on_progress=note)
    assert sorted({steps for steps, *_ in seen}) == [1, 2, 3, 4, 5]
    assert {total for _, total, *_ in seen} == {5}
    assert seen[-1][-1] > 0


def test_the_results_are_written_where_the_configuration_says(tmp_path):
    result = train(
        edge_config(*flags("mlp", "sgd"), "trainers=[]", "training.max_steps=2", f"output.directory={tmp_path}")
    )
    assert_same_bits(result.module.state_dict(), load_file(tmp_path / "model.safetensors"))
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 2


UNGUARDED = """
from isthmus import EdgeConfig, load_config, train

train(load_config(EdgeConfig, None, ["trainers=[]", "training.max_steps=2", "data.workers=1", "checkpoints.location=none"]))
"""


@pytest.mark.slow
def test_a_script_that_trains_as_its_readers_import_it_ends_in_sentences(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert "put the call of train() under" in done.stderr
    assert done.stderr.count("session opened") == 1, "no process but the first trains"


QUIET = """
import logging
from isthmus import EdgeConfig, load_config, train

{prepared}
flags = ["trainers=[]", "training.max_steps=2", "checkpoints.location=none", "control.listen=none", 'log.level="error"']
train(load_config(EdgeConfig, None, flags))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepared", "opened"),
    [("", 0), ("logging.basicConfig(level='INFO')", 1)],
    ids=["one that has none", "one that has its own"],
)
def test_a_program_logs_as_the_configuration_says_unless_it_has_logs_of_its_own(tmp_path, prepared, opened):
    script = tmp_path / "mine.py"
    script.write_text(QUIET.format(prepared=prepared))
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("session opened") == opened
