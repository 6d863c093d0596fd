"""SIGTERM, and SIGKILL half a minute later, as containers are stopped: the agent is done by then, and nothing is lost."""

import signal
import subprocess

import pytest
from safetensors.torch import load_file

from shared.errors import ExitCode
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, run_agent, trainer_process

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
