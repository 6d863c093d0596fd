"""A training whose loss is no number any more: said at once, ended with a code of its own, and the last good weights kept."""

import json

import pytest
import torch
from safetensors.torch import load_file

from shared.errors import ExitCode
from tests.support.commands import MLP, assert_one_sentence
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")

EXPLODES_AT = 35
"""The learning rate is 10^30 times as high from this step on."""
TRAINING = [
    *MLP,
    'training.optimizer={name="sgd",learning_rate=0.05}',
    f'training.schedule={{name="multistep",every="step",milestones=[{EXPLODES_AT}],gamma={10**30}.0}}',
    "training.max_steps=60",
    "log.format=json",
]


def diverging(trainer, folder, *flags):
    """An agent process that trains until it diverges, and its log."""
    flags = [*TRAINING, f"checkpoints.location={folder / 'state'}", f"output.directory={folder / 'run'}", *flags]
    done = run_agent("run", f"--trainer={trainer}", *(f"--set={flag}" for flag in flags))
    return done, [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def strict_json(path):
    """Load a JSON file in which NaN is no value."""

    def refuse(name):
        raise AssertionError(f"{path} holds {name}")

    return json.loads(path.read_text(), parse_constant=refuse)


CLIPPED = 'training.optimizer={name="sgd", learning_rate=0.05, clip_norm=100.0, clip="model"}'


@pytest.mark.first_case
@pytest.mark.parametrize("flags", [(), ("deployment.staleness=3", 'deployment.codec="uniform8"'), (CLIPPED,)])
@pytest.mark.usefixtures("serves_the_next")
def test_a_loss_that_is_no_number_ends_the_run_with_one_sentence_and_the_last_good_weights(trainer, tmp_path, flags):
    done, log = diverging(trainer, tmp_path, "checkpoints.every_steps=5", *flags)
    assert_one_sentence("edge-agent", done, ExitCode.DIVERGED, "training has diverged", "training.on_nan")
    (diverged,) = (entry for entry in log if entry["event"] == "training has diverged")
    assert EXPLODES_AT < diverged["step"] <= EXPLODES_AT + 5
    summary = strict_json(tmp_path / "run" / "summary.json")
    assert summary["diverged_at_step"] == diverged["step"]
    assert 0 < summary["steps"] <= EXPLODES_AT + 1
    assert f"step {summary['steps']}" in done.stderr.splitlines()[-1]
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())
    if not flags:
        expected = plain_state(edge_config(*TRAINING, f"training.max_steps={summary['steps']}"))
        assert_same_bits(expected, weights)


@pytest.mark.usefixtures("serves_the_next")
def test_a_good_model_is_not_overwritten_by_a_run_that_diverges_before_its_first_checkpoint(trainer, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"a good one")
    done, _ = diverging(trainer, tmp_path)
    assert_one_sentence("edge-agent", done, ExitCode.DIVERGED, "no checkpoint")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == b"a good one"


@pytest.mark.usefixtures("serves_the_next")
def test_who_wants_to_go_on_is_warned_once_and_keeps_the_model_that_was_there(trainer, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"a good one")
    done, log = diverging(trainer, tmp_path, 'training.on_nan="warn"')
    assert done.returncode == ExitCode.OK, done.stderr
    warned = [entry for entry in log if entry["event"] == "the loss is no number"]
    assert [entry["level"] for entry in warned] == ["warning"]
    assert [entry["event"] for entry in log if entry["level"] == "warning"][-1] == "the model is not written"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == b"a good one"
    summary = strict_json(tmp_path / "run" / "summary.json")
    assert (summary["steps"], summary["train_loss"]) == (60, None)
