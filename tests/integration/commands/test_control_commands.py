"""The control commands where no run answers them as it should, and where there are two processes of one user."""

import asyncio
import json
import stat

import grpc
import pytest

from cloud_trainer.main import app as trainer_app
from edge_agent.main import app as agent_app
from shared.control.calling import calling
from shared.errors import IsthmusError, ListenError, ProtocolError, RefusedError, UnreachableError
from shared.wire.isthmus.v1 import control_pb2
from shared.wire.isthmus.v1.control_pb2_grpc import EdgeControlServiceStub
from tests.support.commands import command
from tests.support.running import running_trainer

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


@pytest.mark.parametrize("app", [agent_app, trainer_app])
def test_a_command_says_in_one_sentence_that_nobody_is_there(app, tmp_path):
    who = "agent" if app is agent_app else "trainer"
    with pytest.raises(UnreachableError, match=f"no {who} is controlled at unix:/.*: No such file"):
        command(app, "status", f"--control=unix:{tmp_path}/none.sock")
    with pytest.raises(IsthmusError, match=r"control\.listen is none"):
        command(app, "status")


def test_the_sessions_of_a_device_are_listed_when_no_agent_runs(tmp_path):
    assert json.loads(command(agent_app, "sessions", "--json", f"--set=checkpoints.location={tmp_path}")) == {}


async def test_a_second_process_of_a_user_is_controlled_from_nowhere_until_it_has_a_socket_of_its_own(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    socket = tmp_path / "isthmus" / "cloud-trainer" / "control.sock"

    def status(*where):
        return asyncio.to_thread(command, trainer_app, "status", "--json", *where)

    async with running_trainer("control.listen=auto") as first:
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        async with running_trainer("control.listen=auto"):
            assert json.loads(await status("--set=control.listen=auto"))["status"]["address"] == first.address
            with pytest.raises(ListenError, match="another process is controlled at unix:"):
                async with running_trainer(f"control.listen=unix:{socket}"):
                    pass
        async with running_trainer(f"control.listen=unix:{tmp_path}/b.sock") as second:
            answer = json.loads(await status(f"--control=unix:{tmp_path}/b.sock"))
            assert answer["status"]["address"] == second.address
    assert not socket.exists()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnreachableError),
        (grpc.StatusCode.CANCELLED, UnreachableError),
        (grpc.StatusCode.INTERNAL, ProtocolError),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError),
        (grpc.StatusCode.FAILED_PRECONDITION, RefusedError),
    ],
)
async def test_a_call_that_fails_says_who_did_not_answer_it_and_why(code, error, tmp_path):
    async def get_status(_request, context):
        await context.abort(code, "because of this")

    server, target = grpc.aio.server(), f"unix:{tmp_path}/a.sock"
    method = grpc.unary_unary_rpc_method_handler(get_status)
    services = grpc.method_handlers_generic_handler("isthmus.v1.EdgeControlService", {"GetStatus": method})
    server.add_generic_rpc_handlers((services,))
    server.add_insecure_port(target)
    await server.start()

    def ask():
        with calling(target, "agent", EdgeControlServiceStub) as agent:
            agent.GetStatus(control_pb2.EdgeControlServiceGetStatusRequest())

    with pytest.raises(error, match="because of this"):
        await asyncio.to_thread(ask)
    await server.stop(None)
