"""The live page of a real run and of its trainer: the answers and the refusals of the commands, over HTTP."""

import http.client
import json

import pytest

from cloud_trainer.main import app as trainer_app
from edge_agent.main import app as agent_app
from shared.errors import ExitCode
from tests.support.browser import EVIL
from tests.support.commands import command
from tests.support.operators import EDGE, SETTINGS, TRAINER, Operator
from tests.support.running import agent_process, heard_trainer_process

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
            Operator(sockets[0], EDGE).watch_until(lambda status: status["state"] == "RUN_STATE_TRAINING")
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
