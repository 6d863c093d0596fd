"""Runs that an operator closes or pauses, whatever becomes of their stream and their trainer meanwhile."""

import asyncio
import io
import json
import re

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from edge_agent.control import commands as control_commands
from edge_agent.control.service import SERVICE
from edge_agent.main import app as agent_app
from edge_agent.sessions.open_session import OpenSession
from isthmus import run_training
from shared.control import commands
from shared.errors import ExitCode, FencedError, GoneError, RefusedError
from shared.transport.rpc.contract import Stub
from shared.wire.isthmus.v1 import control_pb2
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.operators import ENDLESS, SETTINGS, STEPS, TRAINER, Operator
from tests.support.placement_kinds import BATCH_SIZE, addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, held_port, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resumable", "error", "code"),
    [(True, FencedError, ExitCode.REFUSED), (False, GoneError, ExitCode.GONE)],
    ids=["for now", "for good"],
)
async def test_an_operator_closes_a_session_that_trains(resumable, error, code):
    async with running_trainer("control.listen=127.0.0.1:0") as server:
        config = edge_config(*ENDLESS, f"trainer.address={server.address}")
        run = asyncio.create_task(run_training(config))
        operator = Operator(server.address, TRAINER)
        attached = await asyncio.to_thread(
            operator.watch_until, lambda status: int(status.get("steps", 0)) > 0 and "sessions" in status
        )
        session = attached["sessions"][0]["sessionId"]
        await asyncio.to_thread(operator, "CloseSession", {"sessionId": session, "resumable": resumable})
        with pytest.raises(error, match="was closed while it trained") as ended:
            await run
        assert ended.value.exit_code is code


@pytest.fixture
def port():
    """Hold the port to which a trainer comes back."""
    with held_port() as port:
        yield port


@pytest.mark.slow
async def test_a_run_that_stands_still_outlives_its_stream_and_its_trainer(tmp_path, port, monkeypatch):
    address, socket = f"127.0.0.1:{port}", f"unix:{tmp_path}/a.sock"
    there = [f"server.listen={address}", f"checkpoints.location={tmp_path / 'trainer'}"]
    here = [f"trainer.address={address}", "trainer.give_up_seconds=60", f"control.listen={socket}"]
    config = edge_config(*SETTINGS, *here, f"checkpoints.location={tmp_path / 'edge'}")
    begun = asyncio.Event()

    async def until(reached):
        async for answer in agent.Watch(
            control_pb2.EdgeControlServiceWatchRequest(interval=Duration(nanos=50_000_000))
        ):
            if reached(answer.status):
                return answer.status
        raise AssertionError(f"the run ended before that was so: {await run}")

    shown, watched, viewed = [], asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def see(_answer, line, **_):
        shown.append(line)
        loop.call_soon_threadsafe(watched.set)

    class Terminal(io.StringIO):
        def write(self, text):
            if "paused" in text:
                loop.call_soon_threadsafe(viewed.set)
            return super().write(text)

    terminal = Terminal()
    monkeypatch.setattr(commands, "show", see)
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=terminal, force_terminal=True, width=100))
    async with grpc.aio.insecure_channel(socket) as channel, asyncio.timeout(200):
        agent = Stub(SERVICE, channel)
        async with running_trainer(*there):
            run = asyncio.create_task(run_training(config, Listening(lambda progress: progress.steps and begun.set())))
            await begun.wait()
            step = (await agent.Pause(control_pb2.PauseRequest())).step
        away = await until(lambda status: status.state == control_pb2.RUN_STATE_AWAY)
        assert (away.attached, away.last_checkpoint.step) == (False, step), "the trainer has let it take a checkpoint"
        async with running_trainer(*there) as server:
            await until(lambda status: status.state == control_pb2.RUN_STATE_PAUSED and status.attached)
            attachment = server.service.sessions.built[0].attachment
            await attachment.end()
            now = await until(lambda status: status.attached and attachment.is_attached_for(0))  # it has dialled again
            assert (now.state, now.step) == (control_pb2.RUN_STATE_PAUSED, step)
            watching = asyncio.gather(
                asyncio.to_thread(control_commands.watch, control=socket, interval=0.05),
                asyncio.to_thread(control_commands.top, control=socket, interval=0.05),
            )
            await watched.wait()
            await viewed.wait()
            await agent.Resume(control_pb2.ResumeRequest())
            result = await run
            await watching
    assert shown[0].startswith(f"paused: step {step} of {STEPS}")
    assert shown[-1].startswith(f"ended: step {STEPS} of {STEPS}")
    first, *_, last = re.findall(r"│ state +│ (\w+)", re.sub(r"\x1b\[[\d;?]*\w", "", terminal.getvalue()))
    assert (first, last) == ("paused", "ended")
    assert_same_bits(plain_state(config), result.module.state_dict())


@pytest.mark.slow
async def test_the_cuts_of_a_chain_are_pinned_by_a_command_while_it_trains(tmp_path):
    socket, begun = f"unix:{tmp_path}/a.sock", asyncio.Event()
    length = [f"data.batch_size={BATCH_SIZE}", "training.max_steps=60", "training.epochs=100"]

    def see(progress):
        if progress.steps:
            begun.set()

    def agent(*arguments):
        return asyncio.to_thread(command, agent_app, *arguments, f"--control={socket}")

    async with running_trainers() as servers:
        placed = flags_of("chain of three", addresses_of(servers), tmp_path)
        config = edge_config(*flags("cnn", "adamw"), *placed, *length, f"control.listen={socket}")
        run = asyncio.create_task(run_training(config, Listening(see)))
        await begun.wait()
        await agent("pause")
        for cuts in ("3,2", "0,2", "1,2,3"):
            with pytest.raises(RefusedError, match=r"there must be 2, rising, from 1 to 4|a cut is 1 to 4"):
                await agent("pin", "--cut", cuts)
        assert "pinned: cuts 2,3\n" in await agent("pin", "--cut", "2,3"), (
            "beside what the trainers of this process log"
        )
        await agent("resume")
        result = await run
    assert [block.worker for block in result.summary.blocks] == ["edge", "edge", "near", "far"]
    assert_same_bits(plain_state(config), result.module.state_dict())


async def test_calls_that_the_end_of_a_run_overtakes_are_refused_with_a_sentence(tmp_path, monkeypatch):
    over, told, close = asyncio.Event(), asyncio.Event(), OpenSession.close

    async def close_once_told(session, **how):
        over.set()
        await told.wait()
        await close(session, **how)

    monkeypatch.setattr(OpenSession, "close", close_once_told)
    socket = f"unix:{tmp_path}/a.sock"
    length = ["training.max_steps=3", "training.epochs=1", f"checkpoints.location={tmp_path / 'edge'}"]
    placed = {"schema": "isthmus.placement/v1", "workers": ["edge"], "tiles": [{"worker": "edge", "blocks": [0, 4]}]}
    async with (
        running_trainer() as server,
        grpc.aio.insecure_channel(socket) as channel,
        asyncio.timeout(60),
    ):
        address = f"trainer.address={server.address}"
        config = edge_config(*flags("cnn", "adamw"), *length, address, f"control.listen={socket}")
        run = asyncio.create_task(run_training(config))
        await over.wait()
        agent = Stub(SERVICE, channel)
        calls = [
            agent.Place(control_pb2.PlaceRequest(document_json=json.dumps(placed))),
            agent.TakeCheckpoint(control_pb2.TakeCheckpointRequest()),
        ]
        status = control_pb2.EdgeControlServiceGetStatusRequest()
        while not (await agent.GetStatus(status)).status.deployment.HasField("wanted_edge_blocks"):
            pass
        told.set()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            refusal = refused.value.code(), refused.value.details()
            assert refusal == (grpc.StatusCode.FAILED_PRECONDITION, "the run ended before this was done")
        await run
