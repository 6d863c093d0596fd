"""Messages of agent and trainer to a service manager, and their ends when it says so."""

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from edge_agent.commands.run_service import status_line
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from isthmus import run_training
from shared.errors import ExitCode, StoppedError
from shared.placement import Deployment
from tests.support.commands import MLP, assert_one_sentence
from tests.support.running import ROOT, Listening, edge_config, run_agent, running_trainer

WATCHDOG_SECONDS = 0.3
PATIENCE_SECONDS = 60


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(path),
            "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
        }
        self.heard = []

    def wait_for(self, pattern):
        """The next message that matches, and all before it in `heard`."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up:
            self.heard.append(self._socket.recv(4096).decode())
            if re.fullmatch(pattern, self.heard[-1]):
                return self.heard[-1]
        raise AssertionError(f"no message like {pattern!r}; the last was {self.heard[-1]!r}")


@contextmanager
def started(manager, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=manager.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def manager(tmp_path):
    return Manager(tmp_path / "notify")


@pytest.mark.slow
async def test_an_agent_is_ready_with_its_session_tells_its_step_and_ends_in_order(manager):
    async with running_trainer() as server:
        flags = [f"--set={flag}" for flag in [*MLP, "training.epochs=100000", f"trainer.address={server.address}"]]

        def listen():
            with started(manager, "edge_agent.main", "run", *flags) as agent:
                manager.wait_for("READY=1")
                assert server.counted("isthmus_sessions") == 1
                assert not [message for message in manager.heard if message.startswith("STATUS")], "that comes later"
                manager.wait_for(r"STATUS=step \d+ of \d+, \d+ samples/s, 1 block here, loss [\d.e-]+")
                for _ in range(3):
                    manager.wait_for("WATCHDOG=1")
                agent.send_signal(signal.SIGTERM)
                manager.wait_for("STOPPING=1")
                out, err = agent.communicate(timeout=PATIENCE_SECONDS)
                return subprocess.CompletedProcess([], agent.returncode, out, err)

        done = await asyncio.to_thread(listen)
        assert_one_sentence("edge-agent", done, ExitCode.TERMINATED, "stopped by SIGTERM")
        assert server.counted("isthmus_sessions") == 0, "it has said goodbye"


@pytest.mark.slow
def test_an_agent_whose_trainer_is_not_there_is_never_ready(manager):
    flags = ["--trainer=127.0.0.1:1", "--set=trainer.connect_timeout_seconds=0.5"]
    with started(manager, "edge_agent.main", "run", *(f"--set={flag}" for flag in MLP), *flags) as agent:
        manager.wait_for("STOPPING=1")
        assert agent.wait(PATIENCE_SECONDS) == ExitCode.UNREACHABLE
    assert not {"READY=1", "WATCHDOG=1"} & set(manager.heard), "a beat would arm the watchdog of a start"


@pytest.mark.slow
def test_the_manager_shows_the_sentence_with_which_an_agent_ends_before_it_trains(manager):
    with started(manager, "edge_agent.main", "run", "--set=trainer.address=nonsense") as agent:
        assert "trainer.address" in manager.wait_for("STATUS=.*")
        assert agent.wait(PATIENCE_SECONDS) == ExitCode.CONFIG


@pytest.mark.slow
async def test_with_other_settings_the_manager_shows_the_command_that_gives_a_run_up(manager, tmp_path):
    shutdown = Shutdown()

    def stop_there(progress):
        if progress.steps == 5:
            shutdown.drain()

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        settings = [*MLP, f"trainer.address={server.address}", "training.max_steps=10"]
        config = edge_config(*settings, f"checkpoints.location={tmp_path / 'state'}")
        with pytest.raises(StoppedError):
            await run_training(config, Listening(stop_there), shutdown=shutdown)
        # A service keeps its sessions in its state directory, of which a shell knows nothing.
        manager.environment["STATE_DIRECTORY"] = str(tmp_path / "state")
        flags = [f"--set={flag}" for flag in [*settings, "data.batch_size=16"]]

        def restart():
            with started(manager, "edge_agent.main", "run", "--resume", *flags) as agent:
                said = manager.wait_for("STATUS=session .* cannot go on .*")
                assert agent.wait(PATIENCE_SECONDS) == ExitCode.CONFIG
            (command,) = re.findall("`(edge-agent forget [^`]*)`", said)
            assert run_agent(*shlex.split(command)[1:]).returncode == ExitCode.OK
            with started(manager, "edge_agent.main", "run", "--resume", *flags) as agent:
                manager.wait_for("READY=1")
                assert agent.wait(PATIENCE_SECONDS) == ExitCode.OK

        await asyncio.to_thread(restart)


@pytest.mark.slow
def test_a_trainer_is_ready_when_it_listens_and_ends_with_zero(manager):
    flags = ["--listen=127.0.0.1:0", "--set=compute.threads=1"]
    with started(manager, "cloud_trainer.main", "serve", *flags) as trainer:
        manager.wait_for("READY=1")
        manager.wait_for(r"STATUS=0 sessions, 0 steps/s, listening on 127\.0\.0\.1:\d+")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        trainer.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert trainer.wait(PATIENCE_SECONDS) == 0


def test_a_status_line_says_step_rate_blocks_and_loss():
    progress = Statistics(
        440, "s", deployment=Deployment(edge_blocks=2), steps=120, samples=3840, loss=0.12345, earlier_seconds=12.0
    )
    assert status_line(progress) == "step 120 of 440, 320 samples/s, 2 blocks here, loss 0.1235"


def test_a_status_line_before_the_first_step_knows_no_loss():
    assert (
        status_line(Statistics(total_steps=440, session="s", deployment=Deployment(edge_blocks=2)))
        == "step 0 of 440, 0 samples/s, 2 blocks here"
    )
