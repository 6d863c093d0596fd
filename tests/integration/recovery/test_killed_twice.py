"""A run whose process is killed twice at one step: the third ends with one sentence that says what would fit."""

import re
import signal

import pytest

from shared.errors import ExitCode
from tests.support.forked import Forked, program
from tests.support.running import run_agent, trainer_process

STEP = 25


def resumed(address, folder, *more):
    settings = [
        'model.factory="tests.support.models.killed:killed"',
        f"model.kwargs={{forward={STEP}}}",
        'data.train={factory="tests.support.samples:FlatDigits"}',
        "data.batch_size=64",
        "deployment.cut=2",
        "compute.threads=1",
        "compute.device=cpu",
        "control.listen=none",
        "checkpoints.every_steps=10",
        f"checkpoints.location={folder}",
        f"trainer.address={address}",
        *more,
    ]
    return ["run", "--resume", *(f"--set={one}" for one in settings)]


def killed(*arguments):
    assert Forked(program, "edge_agent.main", *arguments).wait(120) == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_that_is_killed_twice_at_one_step_ends_with_what_fits_and_then_may_try_again(tmp_path):
    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address):
        arguments = resumed(address, tmp_path / "agent")
        for _ in range(2):
            killed(*arguments)
            killed(*arguments)
            done = run_agent(*arguments)
            assert done.returncode == ExitCode.UNFIT, done.stderr
            sentence = done.stderr.splitlines()[-1]
            assert re.search(
                rf"this run was killed twice at step ({STEP - 1}|{STEP}); a step takes about .* free", sentence
            ), sentence
            assert "begin again with data.batch_size = 32 or deployment.cut = 1, after `edge-agent forget" in sentence
