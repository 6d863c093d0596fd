"""Where the control services listen: on the machine itself, one process to a socket."""

import stat

import pytest

from edge_agent.config import EdgeConfig
from shared.config import load_config
from shared.control.address import control_target, held
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
    assert control_target("auto", "edge-agent", service) == "unix:/run/edge-agent/control.sock"
    user = {"XDG_STATE_HOME": "/home/u/.local/state"}
    assert control_target("auto", "edge-agent", user) == "unix:/home/u/.local/state/isthmus/edge-agent/control.sock"
    assert control_target("127.0.0.1:7", "edge-agent", service) == "127.0.0.1:7"


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
