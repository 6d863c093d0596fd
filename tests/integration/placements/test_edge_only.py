"""Training on the device alone: no trainer is configured or none has a part, none is asked, and everything else is as ever."""

import signal

import pytest
from safetensors.torch import load_file

from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import DivergedError, ExitCode, StoppedError
from shared.training.step_log import applied_steps
from tests.support.commands import assert_one_sentence
from tests.support.experiments import EVERY_PAIR, STEPS, flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, agent_process, edge_config, run_agent

ALONE = "trainers=[]"
STOPPED_AT = 12
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("model", "optimizer"), EVERY_PAIR)
async def test_the_device_alone_trains_bit_for_bit_as_the_plain_loop(model, optimizer):
    chosen = flags(model, optimizer)
    result = await run_training(edge_config(*chosen, ALONE))
    assert result.summary.bytes_up == result.summary.bytes_down == 0
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_staleness_means_nothing_where_nobody_is_waited_for():
    result = await run_training(edge_config(*flags("cnn", "adam"), ALONE, "deployment.staleness=[[0, 3], [1, 5]]"))
    assert_same_bits(plain_state(edge_config(*flags("cnn", "adam"))), result.module.state_dict())


async def test_a_trainer_that_has_no_blocks_is_not_asked():
    nobody = "trainer.address=127.0.0.1:1"
    result = await run_training(edge_config(*flags("mlp", "sgd"), nobody, "placement.edge=0:"))
    assert result.summary.steps == STEPS


async def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path):
    shutdown = Shutdown()

    def stop_there(progress):
        if progress.steps == STOPPED_AT:
            shutdown.drain()

    kept = [f"checkpoints.location={tmp_path}", f"checkpoints.step_log={tmp_path}"]
    chosen = edge_config(*flags("cnn", "adamw"), ALONE, *kept)
    with pytest.raises(StoppedError, match="goes on"):
        await run_training(chosen, Listening(stop_there), shutdown=shutdown)
    (record, *_), *others = stored_sessions(sessions_folder(chosen))
    assert others == []
    result = await run_training(chosen, resume=Resume(record.session_id))
    assert_same_bits(plain_state(edge_config(*flags("cnn", "adamw"))), result.module.state_dict())
    (log,) = tmp_path.glob("*.steps")
    assert applied_steps(log.read_text().splitlines()).count == STEPS


@pytest.mark.slow
def test_a_device_that_dies_goes_on_from_its_checkpoint(tmp_path):
    kept = [f"checkpoints.location={tmp_path}", "checkpoints.every_steps=5", "compute.threads=1"]
    chosen = [*flags("cnn", "adam"), ALONE, *kept, "training.max_steps=400", "training.epochs=20"]
    with agent_process(*chosen) as (process, said):
        said.first_event("checkpoint at every worker", least_step=10)
        process.send_signal(signal.SIGKILL)
    done = run_agent("run", "--resume", f"--output={tmp_path / 'out'}", *(f"--set={flag}" for flag in chosen))
    assert done.returncode == 0, done.stderr
    assert "went back to a checkpoint" in done.stderr
    assert_same_bits(plain_state(edge_config(*chosen)), load_file(tmp_path / "out" / "model.safetensors"))


async def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_weights(tmp_path):
    kept = [f"checkpoints.location={tmp_path}", "checkpoints.every_steps=2"]
    wild = 'training.optimizer={name="sgd", learning_rate=1e30}'
    with pytest.raises(DivergedError):
        await run_training(edge_config(*flags("mlp", "sgd"), ALONE, *kept, wild))


def test_a_cut_without_a_trainer_is_refused():
    done = run_agent("run", *(f"--set={flag}" for flag in [*flags("cnn", "sgd"), ALONE, "deployment.cut=2"]))
    assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "deployment.cut is 2 and trainers is empty")
