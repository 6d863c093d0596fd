"""The live page of a real run and of its trainer: the answers and the refusals of the commands, over HTTP."""

import asyncio
import http.client
import json
import socket
import threading

import pytest
import structlog

from cloud_trainer.main import app as trainer_app
from edge_agent.main import app as agent_app
from isthmus import run_training
from shared.errors import ExitCode, StoppedError
from shared.web import connections
from shared.web.site import PAGE
from tests.support.browser import EVIL, Page, get, post
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.operators import EDGE, SETTINGS, TRAINER, Operator
from tests.support.running import Listening, agent_process, edge_config, heard_trainer_process, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
WEB = "web.listen=127.0.0.1:0"
MOVING = ("running", "age")
"""Fields that grow while nothing happens."""


class Browser:
    """Calls one service as its page does."""

    def __init__(self, said, service):
        page = next((entry for entry in said.heard if entry["event"] == "page"), None) or said.first_event("page")
        self._address = page["address"].removeprefix("http://").rstrip("/")
        self._service = service

    def __call__(self, method, data=None, **headers):
        """Status and answer of a call."""
        origin = {"Origin": f"http://{self._address}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            connection.request("POST", f"/{self._service}/{method}", json.dumps(data or {}), origin | headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def answered(self, method, data=None):
        """The answer to a call that is not refused."""
        status, answer = self(method, data)
        assert status == 200, answer
        return answer


def still(value):
    """An answer without what grows while nothing happens."""
    if isinstance(value, dict):
        return {key: still(inner) for key, inner in value.items() if key not in MOVING}
    return [still(inner) for inner in value] if isinstance(value, list) else value


def test_a_page_shows_what_the_commands_show_and_steers_as_they_do(tmp_path):
    sockets = [f"unix:{tmp_path}/{name}.sock" for name in ("edge", "trainer")]
    placed = ['data.test={factory="tests.support.samples:FlatDigits"}', "training.max_steps=1000000"]
    with heard_trainer_process(WEB, f"control.listen={sockets[1]}") as (_, address, trainer_said):
        flags = [*SETTINGS, *placed, WEB, f"control.listen={sockets[0]}", f"checkpoints.location={tmp_path}/kept"]
        with agent_process(f"trainer.address={address}", *flags) as (agent, said):
            edge, trainer = Browser(said, EDGE), Browser(trainer_said, TRAINER)
            Operator(sockets[0], EDGE).watch_until(lambda status: "step" in status)  # JSON leaves out a zero
            step = edge.answered("Pause")["step"]
            assert edge.answered("Pin", {"cut": 2, "bits": 8}) == {"pinned": {"cut": 2, "bits": 8}}
            assert edge.answered("TakeCheckpoint") == {"step": step}
            for browser, app, socket in ((edge, agent_app, sockets[0]), (trainer, trainer_app, sockets[1])):
                told = json.loads(command(app, "status", "--json", f"--control={socket}"))
                assert still(browser.answered("GetStatus")) == still(told)
            status = edge.answered("GetStatus")["status"]
            assert (status["state"], status["deployment"]["edgeBlocks"]) == ("RUN_STATE_PAUSED", 2)
            assert (status["deployment"]["codec"], status["lastCheckpoint"]["step"]) == ("uniform8", step)
            assert edge("Pin", {"cut": 99})[0] == 400
            assert edge("Drain", Origin=EVIL)[0] == 403
            assert edge("Drain", Host="evil.example")[0] == 403
            assert edge.answered("GetStatus")["status"]["state"] == "RUN_STATE_PAUSED"
            assert edge.answered("Resume") == {"step": step}
            (session,) = trainer.answered("GetStatus")["status"]["sessions"]
            assert session["runId"] == status["sessionId"]
            assert edge.answered("Drain") == {}
            assert agent.wait(60) == ExitCode.TERMINATED


READERS, STEPS = 100, 100
LITTLE_ROOM = 4096
"""Bytes that the kernel is to keep of an answer, at either end: less than the page has."""


class Steps:
    """The steps of a run in this process."""

    def __init__(self):
        self.done = 0
        self._more = asyncio.Event()

    def progressed(self, statistics):
        self.done = statistics.steps
        self._more.set()

    async def until(self, holds, run):
        """Wait for steps until something holds. run: raises what ends it before."""
        while not holds():
            self._more.clear()
            more = asyncio.create_task(self._more.wait())
            await asyncio.wait({run, more}, return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                more.cancel()
                run.result()


def answers(monkeypatch):
    """Note what writes each answer of a page from now on."""
    writers, writer_class = [], asyncio.StreamWriter

    def noted(*arguments):
        writers.append(writer_class(*arguments))
        return writers[-1]

    monkeypatch.setattr(asyncio, "StreamWriter", noted)
    return writers


def held(writers):
    """The bytes that this process keeps of each answer that nobody reads."""
    return [size for each in writers if (size := each.transport.get_write_buffer_size())]


async def reader_of(port):
    """Ask for the page, and read nothing of it."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE_ROOM)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    connection.send(get())
    return connection


async def test_a_hundred_who_read_nothing_hold_no_step_no_thread_and_little_memory(monkeypatch):
    create = socket.create_server

    def with_little_room(*arguments, **more):
        listening = create(*arguments, **more)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE_ROOM)
        return listening

    monkeypatch.setattr(socket, "create_server", with_little_room)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 3600.0)  # so that nobody is given up for being slow
    steps, writers = Steps(), answers(monkeypatch)
    async with running_trainer() as server:
        placed = [*flags("mlp", "sgd"), "training.max_steps=1000000", "training.epochs=1000000"]
        config = edge_config(*placed, WEB, "deployment.cut=2", f"trainer.address={server.address}")
        with structlog.testing.capture_logs() as logs:
            run = asyncio.create_task(run_training(config, Listening(steps.progressed)))
            await steps.until(lambda: steps.done > 0, run)
        port = next(int(one["address"].rstrip("/").rpartition(":")[2]) for one in logs if one["event"] == "page")
        threads = threading.active_count()
        readers = [await reader_of(port) for _ in range(READERS)]
        await steps.until(lambda: len(held(writers)) >= connections.MOST_WAITING, run)
        before = steps.done
        await steps.until(lambda: steps.done >= before + STEPS, run)
        kept = held(writers)
        assert len(kept) == connections.MOST_WAITING
        assert max(kept) < PAGE.stat().st_size + connections.MOST_HEAD_BYTES
        assert threading.active_count() == threads
        assert (await Page(port).ask(post("Drain"))).status == 200
        with pytest.raises(StoppedError):
            await run
        for each in readers:
            each.close()
