"""Training in float16: updates are skipped as by torch's `GradScaler` in one process, whatever worker overflows."""

import json
from itertools import product

import pytest
import torch

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.resuming import Resume
from edge_agent.training.events import StepFinished
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, StoppedError
from shared.training.loss_scale import FIRST
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.experiments import OPTIMIZERS, flags
from tests.support.placement_kinds import RANGES, SHARED, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import Listening, edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT, STEPS = 'training.precision="fp16"', "training.max_steps=12"
CLIPPED = 'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=0.3, clip="model"}'
UPDATES = {"alone": (), "together": (CLIPPED, "training.accumulate_batches=3")}
QUICK = ("chain of three", "samples divided")


def overflowing(block, *steps, own=False):
    kwargs = f"{{block={block}, forwards={json.dumps(steps)}, own={json.dumps(own)}}}"
    return [
        'model.factory="tests.support.models.overflowing:overflowing"',
        f"model.kwargs={kwargs}",
        'data.train={factory="tests.support.samples:FlatDigits"}',
        f"training.optimizer={OPTIMIZERS['adamw']}",
        "data.batch_size=64",
        SHORT,
        STEPS,
    ]


async def trained(chosen, kind, folder):
    """The weights, and the updates that the agent has skipped."""
    async with running_trainers() as servers:
        config = edge_config(*chosen, *flags_of(kind, addresses_of(servers), folder), *permitted(kind, "mlp"))
        skipped = Skipped()
        result = await run_training(config, skipped.listen)
    expected = plain_tiles_state(config) if kind in SHARED else plain_state(edge_config(*chosen))
    assert_same_bits(expected, result.module.state_dict())
    return skipped.count


class Skipped:
    """Notes the updates that a run has skipped, and the scale of its loss."""

    def __init__(self):
        self.count = self.scale = None

    def listen(self, events):
        events.subscribe(StepFinished, self._note)

    def _note(self, event):
        self.count, self.scale = event.skipped_updates, event.loss_scale


@pytest.mark.parametrize(
    ("kind", "updates"),
    thinned(product([*RANGES, *SHARED], UPDATES), lambda values: values[0] in QUICK and values[1] == "alone"),
)
async def test_every_kind_of_placement_skips_what_one_process_skips(kind, updates, tmp_path):
    more = UPDATES[updates]
    chosen = [*overflowing(2, 3, 7, own=kind == "chain of three"), *more]
    assert await trained(chosen, kind, tmp_path) == 2


@pytest.mark.parametrize("model", ["cnn", pytest.param("tied", marks=pytest.mark.slow)])
async def test_a_cut_changes_no_bit(model):
    chosen = [*flags(model, "adamw"), SHORT, STEPS]
    async with running_trainer() as server:
        result = await train_with(server, *chosen, "deployment.cut=2")
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_the_device_alone_skips_them_too():
    chosen = overflowing(1, 3, 7)
    result = await run_training(edge_config(*chosen, "trainers=[]"))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_run_that_goes_on_has_the_scale_of_its_checkpoint(tmp_path, edge_metrics):
    chosen = [*overflowing(2, 3, 15), "training.max_steps=20", "training.evaluate_every_epochs=0"]
    stop, skipped = Shutdown(), Skipped()

    def stop_there(progress):
        if progress.steps == 10:
            stop.drain()

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=10"]
        config = edge_config(*chosen, *kept, f"trainer.address={server.address}", "deployment.cut=2")
        with pytest.raises(StoppedError):
            await run_training(config, Listening(stop_there), shutdown=stop)
        result = await run_training(config, skipped.listen, resume=Resume())
    assert (skipped.count, skipped.scale) == (2, FIRST / 4)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
    shown = edge_metrics[-1].registry.get_sample_value
    assert (shown("isthmus_skipped_updates"), shown("isthmus_loss_scale")) == (2, FIRST / 4)


@pytest.mark.slow
async def test_raw_features_and_error_gradients_have_half_the_bytes():
    chosen = [*flags("cnn", "sgd"), STEPS, "deployment.cut=2", "deployment.codec=raw", "deployment.downlink_codec=raw"]
    async with running_trainer() as server:
        short, half = [
            (await train_with(server, *chosen, f'training.precision="{name}"')).summary for name in ("bf16", "fp16")
        ]
    scale_and_coefficient = 2 * 8 * 12
    assert half.bytes_up - short.bytes_up == scale_and_coefficient
    assert 0 < half.bytes_down - short.bytes_down < short.bytes_down / 100


def test_weights_in_float16_are_refused_by_name():
    halves = ['model.factory="tests.support.models.overflowing:in_halves"', "model.kwargs={}"]
    says = "parameter '0.weight' is in float16 already; weights that learn must be in float32"
    agent_fails(ExitCode.CONFIG, says, flags=[*flags("mlp", "sgd"), *halves, SHORT])


def test_a_device_that_does_not_compute_in_it_is_refused(monkeypatch):
    monkeypatch.setattr("shared.training.precision.computed_type", lambda _ones: torch.float32)
    with pytest.raises(ConfigError, match="in which cpu of worker 'edge' does not compute; use \"fp32\""):
        Experiment(edge_config(*flags("mlp", "sgd"), SHORT))
