"""SIGTERM, and SIGKILL half a minute later, as containers are stopped: the agent is done by then, and nothing is lost."""

import asyncio
import signal
import subprocess

import pytest
from safetensors.torch import load_file

from edge_agent.sessions.resuming import Resume
from edge_agent.training.events import Activity, ActivityChanged, CheckpointShared, Evaluated
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ExitCode, StoppedError
from tests.support import plain_history
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, agent_process, edge_config, run_agent, running_trainer, trainer_process

GRACE_SECONDS = 30
CHOSEN = [*flags("mlp", "adamw"), "training.max_steps=3000", "checkpoints.every_steps=50"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("hangs", [False, True], ids=["a trainer that answers", "a trainer that hangs"])
def test_an_agent_that_is_told_to_stop_is_done_before_it_is_killed_and_its_run_goes_on(hangs, tmp_path):
    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (trainer, address):
        settings = [*CHOSEN, f"trainer.address={address}", f"checkpoints.location={tmp_path / 'agent'}"]
        with agent_process(*settings, "checkpoints.stop_seconds=5") as (process, said):
            said.first_event("checkpoint at every worker")
            if hangs:
                trainer.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            assert process.wait(60) == ExitCode.TERMINATED, said
            said.join()
            said_last = said.last_lines[-1]
        trainer.send_signal(signal.SIGCONT)
        arguments = [f"--set={one}" for one in settings]
        done = run_agent("run", "--resume", f"--output={tmp_path / 'run'}", *arguments)
        assert done.returncode == ExitCode.OK, (said_last, done.stderr)
    assert_same_bits(plain_state(edge_config(*CHOSEN)), load_file(tmp_path / "run" / "model.safetensors"))


EVALUATED = [
    *flags("mlp", "adamw"),
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "training.evaluate_every_steps=10",
    "training.evaluate_every_epochs=0",
    "training.keep_best={}",
    "deployment.cut=2",
]


async def stopped_in_evaluations(flags, stops):
    """Runs that are stopped when an evaluation begins after so many steps, and one that goes on to the end."""
    for stop in stops:
        shutdown, steps, evaluated = Shutdown(), [], []

        def begun(event, stop=stop, shutdown=shutdown, steps=steps):
            if event.activity is Activity.EVALUATING and steps[-1] == stop:
                shutdown.drain()

        others = {ActivityChanged: begun, Evaluated: lambda event, evaluated=evaluated: evaluated.append(event.step)}
        listening = Listening(lambda now, steps=steps: steps.append(now.steps), others=others)
        with pytest.raises(StoppedError, match=f"at step {stop} of 30"):
            await run_training(edge_config(*flags), listening, resume=Resume(), shutdown=shutdown)
        assert stop not in evaluated, "a stop leaves no time for it"
    return await run_training(edge_config(*flags), resume=Resume())


@pytest.mark.usefixtures("one_thread")
async def test_a_run_that_is_told_to_stop_while_it_evaluates_loses_no_step(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        settings = [*EVALUATED, f"trainer.address={server.address}"]
        whole = await run_training(edge_config(*settings, f"checkpoints.location={tmp_path / 'whole'}"))
        result = await stopped_in_evaluations([*settings, f"checkpoints.location={tmp_path / 'agent'}"], [10, 20])
    assert_same_bits(plain_state(edge_config(*EVALUATED)), result.module.state_dict())
    assert_same_bits(dict(whole.best), dict(result.best))
    assert plain_history.of(result.history) == plain_history.of(whole.history)


@pytest.mark.usefixtures("one_thread")
async def test_a_run_that_is_told_to_stop_in_its_last_evaluation_keeps_its_last_step(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        settings = [
            *EVALUATED,
            f"trainer.address={server.address}",
            f"checkpoints.location={tmp_path / 'agent'}",
            "checkpoints.every_seconds=1000",
        ]
        shutdown, steps, run = Shutdown(), [0], []

        def begun(event):
            if event.activity is Activity.EVALUATING and steps[-1] == 30:
                shutdown.drain()

        def shared(_event):
            if steps[-1] == 30:
                run[0].cancel()  # as SIGKILL would

        listening = Listening(
            lambda now: steps.append(now.steps), others={ActivityChanged: begun, CheckpointShared: shared}
        )
        run.append(asyncio.create_task(run_training(edge_config(*settings), listening, shutdown=shutdown)))
        with pytest.raises((asyncio.CancelledError, StoppedError)):
            await run[0]
        again = []
        result = await run_training(
            edge_config(*settings), Listening(lambda now: again.append(now.steps)), resume=Resume()
        )
    assert set(again) <= {0, 30}, "no step is done again"
    assert_same_bits(plain_state(edge_config(*EVALUATED)), result.module.state_dict())
    assert [row.step for row in result.history if row.test_loss is not None] == [10, 20, 30]
