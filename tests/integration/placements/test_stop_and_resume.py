"""Runs under a placement that are stopped, and go on from the checkpoints of all their workers."""

import json
from contextlib import ExitStack

import pytest

from cloud_trainer.main import app as trainer_app
from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import StoppedError
from shared.training.step_log import applied_steps
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.placement_kinds import (
    BATCH_SIZE,
    PEERS_ALLOWED,
    addresses_of,
    flags_of,
    permitted,
    running_trainers,
)
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import Listening, edge_config, trainer_process

STOPPED_AT, STEPS = 7, 20
pytestmark = pytest.mark.usefixtures("one_thread")


def stopping(shutdown):
    def stop_there(progress):
        if progress.steps == STOPPED_AT:
            shutdown.drain()

    return Listening(stop_there)


@pytest.mark.parametrize(
    "kind",
    [
        "samples divided",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("inverted", "chain of four", "owners that run nothing")
        ),
    ],
)
async def test_a_run_that_was_stopped_goes_on_bit_for_bit(kind, tmp_path):
    async with running_trainers(tmp_path) as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "tied")]
        length = [f"data.batch_size={BATCH_SIZE}", f"training.max_steps={STEPS}"]
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"checkpoints.step_log={tmp_path}"]
        config = edge_config(*flags("tied", "adam"), *placed, *length, *kept)
        shutdown = Shutdown()
        with pytest.raises(StoppedError, match="goes on"):
            await run_training(config, stopping(shutdown), shutdown=shutdown)
        result = await run_training(config, resume=Resume())
    assert_same_bits(plain_tiles_state(config), result.module.state_dict())
    (log,) = tmp_path.glob("*.steps")
    assert applied_steps(log.read_text().splitlines()).count == STEPS, "it is one session, and no step was done twice"


@pytest.mark.slow
async def test_the_trainers_show_the_session_of_their_part_while_it_trains_and_after_a_stop(tmp_path):
    kind, parts = "chain, and labels stay", {"near": "1:2", "far": "2:3"}
    shutdown, seen = Shutdown(), {}
    with ExitStack() as trainers:
        addresses, controls = {}, {}
        for name in parts:
            controls[name] = f"unix:{tmp_path / name}.sock"
            own = [f"control.listen={controls[name]}", f"checkpoints.location={tmp_path / name}"]
            started = trainer_process(PEERS_ALLOWED, "compute.threads=1", "compute.device=cpu", *own)
            _, addresses[name] = trainers.enter_context(started)

        def sessions():
            shown = {
                name: json.loads(command(trainer_app, "sessions", "--json", f"--control={at}"))["sessions"]
                for name, at in controls.items()
            }
            assert all(len(of_trainer) == 1 for of_trainer in shown.values())
            return {name: of_trainer[0] for name, of_trainer in shown.items()}

        def look_and_stop(progress):
            if progress.steps == STOPPED_AT:
                seen.update(sessions())  # the trainers are other processes, so they answer while this one waits
                shutdown.drain()

        length = [f"data.batch_size={BATCH_SIZE}", f"training.max_steps={STEPS}"]
        kept = [f"checkpoints.location={tmp_path / 'edge'}"]
        config = edge_config(*flags("cnn", "adamw"), *flags_of(kind, addresses, tmp_path), *length, *kept)
        with pytest.raises(StoppedError, match="goes on"):
            await run_training(config, Listening(look_and_stop), shutdown=shutdown)
        assert {name: shown["heldBlocks"] for name, shown in seen.items()} == parts
        assert {shown["state"] for shown in seen.values()} == {"TRAINER_SESSION_STATE_ATTACHED"}
        stopped = sessions()
        assert {shown["state"] for shown in stopped.values()} == {"TRAINER_SESSION_STATE_KEPT"}
        near, far = (int(shown["checkpointSteps"][0]) for shown in stopped.values())
        assert near == far >= STOPPED_AT, "both have written the state of the same step"
        result = await run_training(config, resume=Resume())
        assert not any(
            json.loads(command(trainer_app, "sessions", "--json", f"--control={at}")) for at in controls.values()
        )
    assert_same_bits(plain_state(config), result.module.state_dict())
    assert [block.worker for block in result.summary.blocks] == ["edge", "near", "far", "edge"]
