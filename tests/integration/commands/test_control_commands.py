"""The control commands where no run answers them as it should, and where there are two processes of one user."""

import asyncio
import json
import os
import stat
from pathlib import Path

import grpc
import pytest

from cloud_trainer.main import app as trainer_app
from edge_agent.control.service import SERVICE
from edge_agent.main import app as agent_app
from shared.control.calling import calling
from shared.errors import ConfigError, IsthmusError, ListenError, ProtocolError, RefusedError, UnreachableError
from tests.support.commands import command
from tests.support.running import running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("app", [agent_app, trainer_app])
def test_a_command_says_in_one_sentence_that_nobody_is_there(app, tmp_path):
    who = "agent" if app is agent_app else "trainer"
    with pytest.raises(UnreachableError, match=f"no {who} is controlled at unix:/.*: No such file"):
        command(app, "status", f"--control=unix:{tmp_path}/none.sock")
    with pytest.raises(IsthmusError, match=r"control\.listen is none"):
        command(app, "status")


def test_the_sessions_of_a_device_are_listed_when_no_agent_runs(tmp_path):
    assert json.loads(command(agent_app, "sessions", "--json", f"--set=checkpoints.location={tmp_path}")) == {}


async def test_of_two_processes_of_a_user_each_has_a_socket_and_a_command_that_names_none_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    sockets = [tmp_path / "isthmus" / "cloud-trainer" / name for name in ("control.sock", "control-2.sock")]

    async def address_of(*where):
        answer = await asyncio.to_thread(command, trainer_app, "status", "--json", "--set=control.listen=auto", *where)
        return json.loads(answer)["status"]["address"]

    async with running_trainer("control.listen=auto") as first:
        assert await address_of() == first.address
        async with running_trainer("control.listen=auto") as second:
            assert [stat.S_IMODE(socket.stat().st_mode) for socket in sockets] == [0o600, 0o600]
            with pytest.raises(ConfigError, match="2 trainers of this user run; give --control") as refused:
                await address_of()
            assert all(
                f"unix:{socket} (process {os.getpid()}, in {Path.cwd()})" in str(refused.value) for socket in sockets
            )
            for socket, trainer in zip(sockets, (first, second), strict=True):
                assert await address_of(f"--control=unix:{socket}") == trainer.address
            with pytest.raises(ListenError, match="another process is controlled at unix:"):
                async with running_trainer(f"control.listen=unix:{sockets[0]}"):
                    pass
        assert await address_of() == first.address
    assert not any(socket.exists() for socket in sockets)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnreachableError, "because of this"),
        (grpc.StatusCode.CANCELLED, RefusedError, "the agent at .* ended before it answered"),
        (grpc.StatusCode.INTERNAL, ProtocolError, "because of this"),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError, "because of this"),
        (grpc.StatusCode.FAILED_PRECONDITION, RefusedError, "because of this"),
    ],
)
async def test_a_call_that_fails_says_who_did_not_answer_it_and_why(code, error, said, tmp_path):
    async def get_status(_request, context):
        await context.abort(code, "because of this")

    server, target = grpc.aio.server(), f"unix:{tmp_path}/a.sock"
    method = grpc.unary_unary_rpc_method_handler(get_status)
    services = grpc.method_handlers_generic_handler("isthmus.v1.EdgeControlService", {"GetStatus": method})
    server.add_generic_rpc_handlers((services,))
    server.add_insecure_port(target)
    await server.start()

    def ask():
        with calling(target, "agent", SERVICE) as agent:
            agent.call("GetStatus")

    with pytest.raises(error, match=said):
        await asyncio.to_thread(ask)
    await server.stop(None)
