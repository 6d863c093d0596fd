"""Runs whose placement is written by workers: in a run, in its record, and in the sentence that refuses another."""

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
from edge_agent.training.shutdown import Shutdown
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.errors import ConfigError, ExitCode, StoppedError
from tests.support.commands import assert_one_sentence
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, run_agent, running_trainer, train_with

STOPPED_AT = 10
pytestmark = pytest.mark.usefixtures("one_thread")


def placed(address, edge, gpu):
    return [f'trainers=[{{name="gpu", address="{address}"}}]', f"placement.edge={edge}", f"placement.gpu={gpu}"]


@pytest.mark.first_case
@pytest.mark.parametrize("model", ["cnn", "tied"])
async def test_two_workers_written_by_their_blocks_train_bit_for_bit_as_one_process(model):
    expected = plain_state(edge_config(*flags(model, "adam")))
    async with running_trainer() as server:
        result = await train_with(server, *flags(model, "adam", "placement.edge=0:3", "placement.trainer=3:"))
    assert result.summary.edge_blocks == 3
    assert_same_bits(expected, result.module.state_dict())


@pytest.mark.slow
async def test_a_stopped_run_goes_on_under_what_its_record_says_of_workers_and_blocks(tmp_path):
    kept = f"checkpoints.location={tmp_path / 'edge'}"
    shutdown = Shutdown()

    def stop_there(progress):
        if progress.steps == STOPPED_AT:
            shutdown.drain()

    async with running_trainer(f"checkpoints.location={tmp_path / 'cloud'}") as server:
        chosen = edge_config(*flags("cnn", "adam", *placed(server.address, "0:1", "1:")), kept)
        with pytest.raises(StoppedError):
            await run_training(chosen, Listening(stop_there), shutdown=shutdown)
        (record, *_), *others = stored_sessions(sessions_folder(chosen))
        assert others == []
        recorded = load_config(EdgeConfig, None, [kept, "control.listen=none"], environ={}, recorded=record.config)
        assert recorded.placement == chosen.placement
        assert recorded.all_trainers == chosen.all_trainers
        elsewhere = edge_config(*flags("cnn", "adam", *placed(server.address, "0:2", "2:")), kept)
        with pytest.raises(ConfigError, match=r'placement\.edge is \["0:2"\] and was \["0:1"\]'):
            await run_training(elsewhere, resume=Resume(record.session_id))
        result = await run_training(recorded, resume=Resume())
    assert result.summary.edge_blocks == 1
    assert_same_bits(plain_state(edge_config(*flags("cnn", "adam"))), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (placed("127.0.0.1:1", "0:1", "2:"), "nobody has block 1 on samples"),
        (placed("127.0.0.1:1", "0:", "4:"), "must hold at least one block of 0 to 3"),
        (placed("127.0.0.1:1", "2:", "0:2"), "raw samples would go from 'edge' to 'gpu'"),
        (["placement.edge=0:2", "deployment.cut=2"], "deployment.cut and placement both say which blocks run where"),
    ],
)
def test_a_placement_that_cannot_be_ends_before_anybody_is_asked(more, says):
    done = run_agent("run", *(f"--set={flag}" for flag in [*flags("cnn", "sgd"), *more]))
    assert_one_sentence("edge-agent", done, ExitCode.CONFIG, says)


def test_a_placement_that_cannot_be_is_shown_by_nothing_but_its_sentence():
    chosen = [*flags("cnn", "sgd"), *placed("127.0.0.1:1", "0:1", "2:")]
    done = run_agent("placement", *(f"--set={flag}" for flag in chosen))
    assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "nobody has block 1 on samples")
