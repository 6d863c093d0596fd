"""The device alone recalls: it computes its frozen blocks once a sample, and reads what they made from its own disk later."""

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
from edge_agent.training.events import Placed
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, StoppedError
from tests.integration.training.test_recall import (
    CUT,
    FLAGS,
    RECALL,
    RECORD_BYTES,
    SAMPLES,
    Read,
    count,
    keeping,
)
from tests.support.plain import assert_same_bits
from tests.support.plain_recalled import plain_recalled
from tests.support.running import Listening, cut_at, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS, STOPPED_AT = 4, 25
ALONE = [*(flag for flag in FLAGS if not flag.startswith("deployment.cut")), "trainers=[]", RECALL]
TEST_SET = 'data.test={factory="edge_agent.data:digits", kwargs={split="test"}}'


@pytest.mark.first_case
@pytest.mark.parametrize(
    "more",
    [
        [],
        ["deployment.staleness=3"],
        ["data.drop_last=true", "data.batch_size=100", TEST_SET],
        ["training.accumulate_batches=2"],
    ],
)
async def test_each_feature_is_computed_once_and_weights_are_those_of_such_a_loop(tmp_path, more):
    seen = list[int]()
    config = edge_config(*ALONE, *more, keeping(tmp_path))
    result = await run_training(config, Listening(session_opened=lambda deployer: count(deployer, seen)))
    assert result.summary.bytes_up == 0
    if TEST_SET not in more:  # an evaluation computes them, too
        assert sum(seen) == SAMPLES
        assert Read.counts == dict.fromkeys(range(SAMPLES), 1)
    assert_same_bits(plain_recalled(config, {0: CUT}), result.module.state_dict())


async def test_features_lie_in_the_folder_of_the_session_and_go_with_it(tmp_path):
    found = []

    def progressed(statistics):
        if statistics.steps == STOPPED_AT:
            found.extend(tmp_path.glob("edge-agent/*/recalled/features"))
            assert [path.stat().st_size for path in found] == [SAMPLES * RECORD_BYTES]
            assert [path.stat().st_mode & 0o777 for path in found] == [0o600]

    await run_training(edge_config(*ALONE, keeping(tmp_path)), Listening(progressed))
    assert found
    assert not any(path.parent.parent.exists() for path in found)


async def test_a_run_that_stops_leaves_no_features_which_the_next_would_begin_anew(tmp_path):
    shutdown = Shutdown()

    def stop(statistics):
        if statistics.steps == STOPPED_AT:
            assert list(tmp_path.glob("edge-agent/*/recalled/features"))
            shutdown.drain()

    with pytest.raises(StoppedError):
        await run_training(edge_config(*ALONE, keeping(tmp_path)), Listening(stop), shutdown=shutdown)
    assert not list(tmp_path.rglob("features"))


async def test_features_for_which_there_is_no_room_are_refused(tmp_path):
    needed = SAMPLES * RECORD_BYTES
    flags = [*ALONE, keeping(tmp_path), "training.max_steps=2"]
    await run_training(edge_config(*flags, f"checkpoints.max_recalled_bytes={needed}"))
    says = f"would keep {needed} bytes .* checkpoints.max_recalled_bytes gives {needed - 1}"
    with pytest.raises(ConfigError, match=says):
        await run_training(edge_config(*flags, f"checkpoints.max_recalled_bytes={needed - 1}"))
    with pytest.raises(ConfigError, match=r'checkpoints\.location is "none", so they have no folder'):
        await run_training(edge_config(*ALONE, 'checkpoints.location="none"'))
    assert ConfigError.exit_code is ExitCode.CONFIG


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(CUT, BLOCKS), (BLOCKS, CUT)])
async def test_what_moves_to_or_from_a_trainer_begins_anew(tmp_path, first, then):
    begun, cuts, deployers, done = {0: CUT}, [], [], [0]

    def progressed(statistics):
        done.append(statistics.steps)
        if statistics.steps == STOPPED_AT and deployers:
            cut_at(deployers.pop(), then)

    def placed(event):
        cuts.append(event.deployment.edge_blocks)
        begun[done[-1]] = CUT

    async with running_trainer(keeping(tmp_path / "trainer")) as server:
        config = edge_config(
            *FLAGS, RECALL, f"deployment.cut={first}", keeping(tmp_path), f"trainer.address={server.address}"
        )
        result = await run_training(config, Listening(progressed, deployers.append, {Placed: placed}))
    assert cuts == [first, then]
    assert len(begun) == 2
    assert_same_bits(plain_recalled(config, begun), result.module.state_dict())


async def test_a_run_that_was_stopped_computes_them_anew_from_its_checkpoint_on(tmp_path):
    shutdown, stopped = Shutdown(), []

    def stop_there(statistics):
        stopped.append(statistics.steps)
        if statistics.steps == STOPPED_AT:
            shutdown.drain()

    config = edge_config(*ALONE, keeping(tmp_path))
    with pytest.raises(StoppedError, match="goes on"):
        await run_training(config, Listening(stop_there), shutdown=shutdown)
    ((record, *_),) = stored_sessions(sessions_folder(config))
    seen = list[int]()
    listening = Listening(session_opened=lambda deployer: count(deployer, seen))
    result = await run_training(config, listening, resume=Resume(record.session_id))
    assert sum(seen) == SAMPLES
    assert_same_bits(plain_recalled(config, {0: CUT, stopped[-1]: CUT}), result.module.state_dict())
