"""A failure that would come again ends the run with the sentence that names it, with the settings that users have."""

import asyncio

import pytest

from cloud_trainer.sessions.worker.figures import SessionFigures
from isthmus import run_training
from shared.errors import ExitCode, ProtocolError
from shared.events.worker import StepComputed
from tests.support.commands import MLP, agent_fails
from tests.support.running import edge_config, heard_trainer_process, running_trainer

pytestmark = pytest.mark.timeout(300)

FAILURES = {
    "a loss that fails": (
        'training.loss="tests.support.models.failing:no_loss"',
        ExitCode.REFUSED,
        "failed with RuntimeError: the loss is not written yet",
    ),
    "a block in the cloud": (
        'model={factory="tests.support.models.failing:failing", kwargs={block=2, when="backward"}}',
        ExitCode.REFUSED,
        "failed with RuntimeError: the backward is not written yet",
    ),
    "a block on the edge": (
        'model={factory="tests.support.models.failing:failing", kwargs={block=0, when="backward"}}',
        ExitCode.MODEL,
        "failed with RuntimeError: the backward is not written yet",
    ),
}


@pytest.fixture(scope="module")
def heard():
    """The address of a trainer, and what it says."""
    with heard_trainer_process("compute.threads=1") as (process, address, said):
        yield address, said
        assert process.poll() is None


def next_failure(said, *, of_the_trainer=True):
    """Return the trainer's first report of a failure in the session that it opens next."""
    session = said.first_event("session opened")["session"]
    if not of_the_trainer:
        return None
    told = said.first_event("call refused")
    assert told["session"] == session
    return told["reason"]


@pytest.mark.first_case
@pytest.mark.parametrize(("flag", "code", "says"), FAILURES.values(), ids=FAILURES)
def test_a_failure_of_the_first_step_is_told_and_ends_the_run(heard, flag, code, says):
    address, said = heard
    err = agent_fails(code, says, flags=[flag], trainer=address)
    assert err.count("session opened") == 1
    of_the_trainer = code is ExitCode.REFUSED
    told = next_failure(said, of_the_trainer=of_the_trainer)
    assert not of_the_trainer or says in told


def test_labels_of_another_shape_are_told_before_a_trainer_is_asked():
    err = agent_fails(
        ExitCode.MODEL,
        "the model's output is (32, 10), the labels are (32, 1)",
        flags=['data.train={factory="tests.support.samples:ColumnLabels"}'],
    )
    assert "session opened" not in err


def test_a_failure_of_a_later_epoch_is_told_and_ends_the_run(heard):
    flags = [
        'model={factory="tests.support.models.failing:normalised"}',
        "data.drop_last=false",
        "data.batch_size=359",  # so that the last of 1437 samples is alone in its batch
    ]
    err = agent_fails(ExitCode.REFUSED, "Expected more than 1 value per channel", flags=flags, trainer=heard[0])
    assert err.count("session opened") == 1
    assert "Expected more than 1 value per channel" in next_failure(heard[1])


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_failure_that_comes_again_after_going_back_to_a_checkpoint_is_told(heard, tmp_path, staleness):
    flags = [
        'data.train={factory="tests.support.samples:Mislabelled", kwargs={first=1400}}',
        'training.loss="tests.support.models.failing:own_cross_entropy"',
        "checkpoints.every_steps=1",
        f"checkpoints.location={tmp_path}",
        f"deployment.staleness={staleness}",
        "log.format=json",
    ]
    err = agent_fails(ExitCode.REFUSED, "failed with IndexError: Target 10 is out of", flags=flags, trainer=heard[0])
    assert err.count('"event": "session opened"') == 1
    assert err.count('"event": "went back to a checkpoint"') <= 1
    assert "Target 10 is out of" in next_failure(heard[1])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
async def test_a_defect_of_the_trainer_that_comes_again_before_a_checkpoint_is_told(monkeypatch):
    failed_steps, make = [], SessionFigures.__init__

    def fail(event):
        if event.step >= 5:
            failed_steps.append(event.step)
            raise LookupError("a defect of ours")

    def make_failing(self, *arguments):
        *_, events = arguments
        events.subscribe(StepComputed, fail)
        make(self, *arguments)

    monkeypatch.setattr(SessionFigures, "__init__", make_failing)
    async with running_trainer() as server, asyncio.timeout(60):
        with pytest.raises(ProtocolError, match=r"a defect in the trainer \(LookupError: a defect of ours\)"):
            await run_training(edge_config(*MLP, f"trainer.address={server.address}"))
    assert failed_steps == [5, 5], "it was tried once more"
