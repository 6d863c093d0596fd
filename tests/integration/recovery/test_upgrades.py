"""A rolling upgrade: an agent waits for a trainer that is one protocol version ahead or behind, until both speak the same."""

import signal
import socket
import subprocess
from contextlib import ExitStack

import pytest
from safetensors.torch import load_file

from shared.errors import ExitCode
from shared.version import PROTOCOL_VERSION
from tests.support.experiments import flags
from tests.support.forked import Forked, program
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import ALLOWED, HASTE, StandardError, agent_process, edge_config, held_port

pytestmark = pytest.mark.usefixtures("one_thread")
WAITING = "waiting until both sides are upgraded"
ONE_OFF = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1)


def of_version(version, *arguments):
    """Be a trainer of another version of the protocol."""
    import cloud_trainer.sessions.fencing

    cloud_trainer.sessions.fencing.PROTOCOL_VERSION = version
    program("cloud_trainer.main", *arguments)


class Upgraded:
    """A trainer at one address and on one disk, in one version after the other."""

    def __init__(self, folder):
        self._stack = ExitStack()
        self._port = self._stack.enter_context(held_port())
        self._folder = folder
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()
        self._stack.close()

    @property
    def address(self):
        return f"127.0.0.1:{self._port}"

    def begin(self, version):
        self._stop()
        settings = (
            f"server.listen={self.address}",
            f"models.allowed={ALLOWED}",
            f"checkpoints.location={self._folder}",
            "log.format=json",
            HASTE,
        )
        arguments = ["serve", *(f"--set={one}" for one in settings)]
        self._process = Forked(of_version, version, *arguments, stderr=subprocess.PIPE)
        self._said = StandardError(self._process)
        self._said.first_event("listening")

    def _stop(self):
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._said.join()


@pytest.mark.first_case
@pytest.mark.parametrize("theirs", ONE_OFF)
def test_a_run_begins_by_itself_when_the_trainer_speaks_its_version(theirs, tmp_path, monkeypatch):
    chosen = [*flags("mlp", "adamw"), "training.max_steps=60"]
    with Upgraded(tmp_path / "trainer") as trainer, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        trainer.begin(theirs)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with agent_process(*chosen, f"trainer.address={trainer.address}", output=tmp_path) as (process, said):
            assert f"this trainer speaks {theirs}" in said.first_event(WAITING)["reason"]
            assert manager.recv(4096).startswith(b"EXTEND_TIMEOUT_USEC=3900000000\nSTATUS=waiting: the trainer at ")
            monkeypatch.delenv("NOTIFY_SOCKET")
            trainer.begin(PROTOCOL_VERSION)
            assert process.wait(120) == ExitCode.OK, said
    assert_same_bits(plain_state(edge_config(*chosen)), load_file(tmp_path / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("theirs", ONE_OFF)
def test_a_run_under_way_goes_on_after_a_trainer_of_another_version(theirs, tmp_path):
    chosen = [*flags("mlp", "adamw"), "training.max_steps=3000", "checkpoints.every_steps=50"]
    with Upgraded(tmp_path / "trainer") as trainer:
        trainer.begin(PROTOCOL_VERSION)
        with agent_process(*chosen, f"trainer.address={trainer.address}", output=tmp_path) as (process, said):
            said.first_event("checkpoint at every worker")
            trainer.begin(theirs)
            assert f"this trainer speaks {theirs}" in said.first_event(WAITING)["reason"]
            trainer.begin(PROTOCOL_VERSION)
            assert process.wait(120) == ExitCode.OK, said
    assert_same_bits(plain_state(edge_config(*chosen)), load_file(tmp_path / "model.safetensors"))


def test_one_that_is_not_upgraded_in_time_ends_the_run(tmp_path):
    chosen = [*flags("mlp", "adamw"), "upgrade.wait_seconds=0"]
    with Upgraded(tmp_path / "trainer") as trainer:
        trainer.begin(PROTOCOL_VERSION + 1)
        with agent_process(*chosen, f"trainer.address={trainer.address}", output=tmp_path) as (process, said):
            assert process.wait(120) == ExitCode.PROTOCOL, said
            said.join()
            assert f"this trainer speaks {PROTOCOL_VERSION + 1}" in str(said)
