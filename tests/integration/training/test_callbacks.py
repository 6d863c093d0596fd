"""Callbacks of a run: what they are told is what the run did, no step waits for them, and they steer it as an operator does."""

import pytest
from structlog.testing import capture_logs

from edge_agent.sessions.resuming import Resume
from isthmus import (
    CheckpointShared,
    Ended,
    Evaluated,
    Prepared,
    RolledBack,
    RowAdded,
    StepFinished,
    run_training,
)
from shared.errors import ConfigError, ExitCode, StoppedError
from tests.support import told
from tests.support.experiments import MODELS
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread", "_forgotten")

TRAINING = [
    *MODELS["mlp"],
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    "training.max_steps=12",
    "training.evaluate_every_steps=5",
    "deployment.cut=1",
]
KEEPER = 'training.callbacks=["tests.support.told:Keeper"]'


@pytest.fixture
def _forgotten():
    told.reset()


async def run(*flags, checkpoints="none"):
    async with running_trainer() as server:
        config = edge_config(
            *TRAINING, f"checkpoints.location={checkpoints}", *flags, f"trainer.address={server.address}"
        )
        return await run_training(config)


async def test_a_callback_is_told_steps_evaluations_rows_and_the_end_and_changes_no_bit():
    result = await run(KEEPER)
    assert_same_bits(result.module.state_dict(), plain_state(edge_config(*TRAINING)))
    (prepared,) = told.kinds(Prepared)
    assert prepared.run_id == result.summary.session
    assert [event.step for event in told.kinds(StepFinished)] == list(range(12))
    assert [event.row for event in told.kinds(RowAdded)] == result.history
    assert [event.step for event in told.kinds(Evaluated)] == [row.step for row in result.history] == [5, 10, 12]
    assert told.told[-1] == Ended(result.summary)


async def test_no_step_waits_for_a_callback():
    hears = Listening(lambda now: now.steps == 12 and now.accuracy is not None and told.may_go_on.set())
    async with running_trainer() as server:
        flags = ['training.callbacks=["tests.support.told:waits"]', "checkpoints.location=none"]
        config = edge_config(*TRAINING, *flags, f"trainer.address={server.address}")
        result = await run_training(config, hears)
    assert [event.step for event in told.kinds(StepFinished)] == list(range(12))
    assert told.told[-1] == Ended(result.summary)


async def test_a_callback_that_raises_is_left_out_and_the_run_goes_on():
    with capture_logs() as logs:
        result = await run('training.callbacks=["tests.support.told:fails"]')
    assert_same_bits(result.module.state_dict(), plain_state(edge_config(*TRAINING)))
    assert len(told.kinds(StepFinished)) == 1
    (warning,) = [line for line in logs if "callback" in line]
    assert warning["callback"] == "tests.support.told:fails"
    assert warning["reason"] == "SystemExit: the disk of the tracker is full"
    assert warning["place"].startswith("told.py, line ")


async def test_a_callback_asks_for_the_end_and_the_run_goes_on_later(tmp_path):
    asks = 'training.callbacks=[{name="tests.support.told:Keeper", kwargs={asks="drain", after=3}}]'
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        with pytest.raises(StoppedError) as stopped:
            await run_training(edge_config(*flags, asks, "training.max_steps=10000", "training.epochs=500"))
        assert stopped.value.exit_code is ExitCode.TERMINATED
        (ended,) = told.kinds(Ended)
        assert ended.summary is None
        assert str(stopped.value).startswith(ended.failure)
        told.reset()
        result = await run_training(
            edge_config(*flags, KEEPER, "training.max_steps=10000", "training.epochs=2"), resume=Resume()
        )
    (back,) = told.kinds(RolledBack)
    assert back.step >= 3
    assert [event.step for event in told.kinds(StepFinished)] == list(range(back.step, result.summary.steps))


async def test_a_callback_asks_for_a_checkpoint(tmp_path):
    asks = 'training.callbacks=[{name="tests.support.told:Keeper", kwargs={asks="take_checkpoint", after=2}}]'
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]

        def stop_once_shared(events):
            events.subscribe(CheckpointShared, shared.append)

        shared = []
        await run_training(edge_config(*flags, asks, "checkpoints.every_seconds=1000"), stop_once_shared)
    assert len(shared) == 2, "the beginning, and the one that was asked for"
    assert len(told.kinds(CheckpointShared)) == 2


async def test_what_is_refused_is_said():
    asks = 'training.callbacks=[{name="tests.support.told:Keeper", kwargs={asks="take_checkpoint", after=2}}]'
    with capture_logs() as logs:
        await run(asks)
    (warning,) = [line for line in logs if "callback" in line]
    assert "keeps no checkpoints" in warning["reason"]


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ('["no.such:thing"]', "module 'no.such' cannot be imported"),
        ('["tests.support.told:nothing"]', "has no callable 'nothing'"),
        ('["tests.support.told:ends_badly"]', "cannot be made: RuntimeError: no such server (told.py, line"),
        ('["tests.support.told:no_callback"]', "makes a int, which cannot be called"),
        ('[{name="tests.support.told:Keeper", kwargs={wrong=1}}]', "cannot be made: TypeError"),
    ],
)
async def test_one_that_is_not_there_is_a_sentence_before_anything_is_dialled(callbacks, sentence):
    config = edge_config(*TRAINING, f"training.callbacks={callbacks}", "trainer.address=127.0.0.1:1")
    with pytest.raises(ConfigError) as refused:
        await run_training(config)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("training.callbacks: ")
    assert refused.value.exit_code is ExitCode.CONFIG


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (['training.callbacks=["mine"]'], "written as package.module:factory"),
        (['training.trackers=["comet"]', "output.directory=run"], "one of tensorboard, mlflow, wandb"),
        (['training.trackers=["tensorboard"]'], "nothing says where to: set output.directory"),
    ],
)
def test_names_that_cannot_be_are_refused_with_the_configuration(flags, sentence):
    with pytest.raises(ConfigError) as refused:
        edge_config(*TRAINING, *flags)
    assert sentence in str(refused.value)
