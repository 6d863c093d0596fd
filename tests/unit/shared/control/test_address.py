"""Addresses of the control services: on the machine itself, one process to a socket."""

import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from edge_agent.config import EdgeConfig
from shared.config import load_config
from shared.control.address import MOST_PROCESSES, control_targets, find_targets, held, held_first
from shared.errors import ConfigError, ListenError


@pytest.mark.parametrize(
    "listen", ["auto", "none", "unix:/run/x.sock", "127.0.0.1:0", "127.9.9.9:50060", "[::1]:1", "localhost:50060"]
)
def test_a_process_is_controlled_from_its_own_machine(listen):
    assert load_config(EdgeConfig, None, [f"control.listen={listen}"], {}).control.listen == listen


@pytest.mark.parametrize(
    "listen",
    ["", "0.0.0.0:1", "192.168.1.5:1", "gpu.example.org:1", "unix:", "unix:relative", "unix:/", "127.0.0.1", "x"],
)
def test_and_from_nowhere_else(listen):
    with pytest.raises(
        ConfigError,
        match=r"control\.listen is .*; it must be auto, none, unix:/path/of/a/socket or host:port on loopback",
    ):
        load_config(EdgeConfig, None, [f'control.listen="{listen}"'], {})


def test_by_itself_a_service_has_its_socket_in_its_runtime_directory_and_a_user_in_his_state_directory():
    service = {"RUNTIME_DIRECTORY": "/run/edge-agent", "STATE_DIRECTORY": "/var/lib/edge-agent"}
    assert control_targets("auto", "edge-agent", service)[0] == "unix:/run/edge-agent/control.sock"
    user = {"XDG_STATE_HOME": "/home/u/.local/state"}
    first, second, *_ = control_targets("auto", "edge-agent", user)
    assert first == "unix:/home/u/.local/state/isthmus/edge-agent/control.sock"
    assert second == "unix:/home/u/.local/state/isthmus/edge-agent/control-2.sock"
    assert control_targets("127.0.0.1:7", "edge-agent", service) == ("127.0.0.1:7",)


def test_a_socket_is_one_processs_at_a_time_and_is_gone_with_it(tmp_path):
    target = f"unix:{tmp_path}/deep/control.sock"
    with held(target) as path:
        path.touch()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(ListenError, match="another process is controlled at"), held(target):
            pass
    assert not path.exists()
    with held(target):
        pass


def test_each_process_of_a_user_has_the_first_socket_that_is_free(tmp_path):
    targets = control_targets("auto", "edge-agent", {"XDG_STATE_HOME": str(tmp_path)})
    assert len(targets) == MOST_PROCESSES
    with held_first(targets) as (one, _):
        with held_first(targets) as (other, _):
            assert (one, other) == targets[:2]
        with held_first(targets) as (other, _):
            assert other == targets[1]
    with ExitStack() as stack:
        taken = [stack.enter_context(held_first(targets))[0] for _ in targets]
        assert taken == [*targets]
        with pytest.raises(ListenError, match="another process is controlled at"), held_first(targets):
            pass


def test_the_remains_of_a_killed_process_are_not_taken_for_a_service(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    paths = [Path(target.removeprefix("unix:")) for target in control_targets("auto", "edge-agent")[:2]]
    paths[0].parent.mkdir(parents=True)
    assert find_targets("auto", "edge-agent") == [f"unix:{paths[0]}"], "a command has to name something"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(paths[0]))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(paths[1]))
        living.listen()
        assert find_targets("auto", "edge-agent") == [f"unix:{paths[1]}"]
