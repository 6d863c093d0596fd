"""The control services as an operator has them: by reflection, with no file of ours at hand, and by the commands.

`buf curl` stands for grpcurl. What every call answered is held against docs/control.md, which shows it.
"""

import json
import re

import pytest
from safetensors.torch import load_file

from cloud_trainer.main import app as trainer_app
from edge_agent.main import app as agent_app
from edge_agent.planning import profile_to_json
from shared.errors import ExitCode, RefusedError
from shared.wire.isthmus.v1 import control_pb2
from tests.conftest import ROOT
from tests.support.commands import command
from tests.support.experiments import profile_of
from tests.support.operators import EDGE, ENDLESS, OFTEN, SETTINGS, STEPS, TRAINER, Operator
from tests.support.peers.curl import curl_stream
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
DOCUMENT = ROOT / "docs" / "control.md"
SLOWLY = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.004}}'
"""The same samples, 32 ms a batch: ten seconds to call before it is over."""


LABELS_STAY = {
    "schema": "isthmus.placement/v1",
    "workers": ["edge", "trainer"],
    "tiles": [
        {"worker": "edge", "blocks": [0, 1]},
        {"worker": "trainer", "blocks": [1, 3]},
        {"worker": "edge", "blocks": [3, 4]},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("c")


@pytest.fixture(scope="module")
def trainer(folder):
    """The trainer's process, its address, and an operator who has its socket."""
    socket = f"unix:{folder}/trainer.sock"
    kept = f"checkpoints.location={folder / 'trainer'}"
    group = 'groups=[{name="line", size=2}]'
    with trainer_process("compute.threads=1", f"control.listen={socket}", kept, group) as (process, address):
        yield process, address, Operator(socket, TRAINER)


def watched_agent(folder, address, name, *settings, output=None):
    socket = f"unix:{folder}/{name}.sock"
    flags = [f"control.listen={socket}", f"trainer.address={address}", f"checkpoints.location={folder / name}"]
    return agent_process(*flags, *settings, output=output), Operator(socket, EDGE)


@pytest.fixture(scope="module")
def answers(folder, trainer, one_thread):  # noqa: ARG001 - what is compared is computed on one thread
    """A run that is paused, moved, kept and finished, and one with an engine that is pinned and drained; what was answered."""
    process, address, operator = trainer
    first, edge = watched_agent(folder, address, "first", *SETTINGS, SLOWLY, output=folder / "out")
    with first as (agent, said):
        said.first_event("controlled at")
        steer_a_run(edge, operator)
        assert agent.wait(60) == ExitCode.OK
    assert_same_bits(plain_state(edge_config(*SETTINGS)), load_file(folder / "out" / "model.safetensors"))

    (folder / "profile.json").write_text(profile_to_json(profile_of(edge_config(*ENDLESS))))
    settings = [*ENDLESS, "compute.threads=1", f"engine.profile={folder / 'profile.json'}"]
    settings += ["engine.margin=0.999"]  # nothing gains so much: what is moved is moved by the operator
    second, other = watched_agent(folder, address, "second", *settings)
    with second as (agent, said):
        said.first_event("controlled at")
        steer_an_engine(other, operator)
        assert agent.wait(60) == ExitCode.TERMINATED
    assert "drained at step" in str(said)

    close_sessions(operator)
    assert process.wait(60) == 0, "it was drained"
    handed_over = answers_of_a_handover(folder)
    return {f"{EDGE}/{name}": answer for name, answer in {**edge.answers, **other.answers, **handed_over}.items()} | {
        f"{TRAINER}/{name}": answer for name, answer in operator.answers.items()
    }


def steer_a_run(edge, trainer):
    edge.watch_until(lambda status: status["state"] == "RUN_STATE_TRAINING" and int(status.get("step", 0)) > 5)
    assert edge("Pause")["step"]
    standing = edge("GetStatus")["status"]
    assert (standing["state"], standing["step"]) == ("RUN_STATE_PAUSED", edge.answers["Pause"]["step"])
    assert edge.health("") == edge.health(EDGE) == "SERVING"
    assert edge.health("training") == "NOT_SERVING"

    # What is pinned in a pause comes into force in it: nothing but the cut changes.
    assert edge("Pin", {"cut": 2})["pinned"] == {"cut": 2}
    moved = edge.watch_until(lambda status: status["deployment"]["edgeBlocks"] == 2)
    assert moved["step"] == standing["step"]
    assert edge("TakeCheckpoint")["step"] == standing["step"]
    kept = edge("ListSessions")["sessions"]
    assert [(session["state"], session["checkpointStep"]) for session in kept] == [
        ("EDGE_SESSION_STATE_RUNNING", standing["step"])
    ]
    edge("GetStatus")
    assert edge("Release")["pinned"] == {}
    assert int(edge("Place", {"documentJson": json.dumps(LABELS_STAY)})["version"]) > 1
    placed = edge.watch_until(lambda status: status["workers"][0]["blocks"] == ["0:1", "3:4"])
    assert (placed["step"], placed["workers"][1]["blocks"]) == (standing["step"], ["1:3"])
    assert edge("SetLogLevel", {"level": "LOG_LEVEL_WARNING"})["previous"] == "LOG_LEVEL_INFO"
    assert edge("GetStatus", remember=False)["status"]["logLevel"] == "LOG_LEVEL_WARNING"

    back = {**LABELS_STAY, "tiles": [LABELS_STAY["tiles"][0], {"worker": "trainer", "blocks": [1, 4]}]}
    edge("Place", {"documentJson": json.dumps(back)}, remember=False)
    edge.watch_until(lambda status: status["workers"][1]["blocks"] == ["1:4"])
    there = trainer("GetStatus")["status"]["sessions"]
    assert [(session["state"], session["step"]) for session in there] == [
        ("TRAINER_SESSION_STATE_ATTACHED", standing["step"])
    ]
    assert trainer.watch_until(lambda status: status["state"] == "TRAINER_STATE_SERVING")["openSessions"] == 1
    refuse_what_cannot_be(edge)
    use_the_commands(edge)
    with curl_stream(edge.target, f"{EDGE}/Watch", OFTEN) as statuses:
        edge.answers["Watch"] = next(statuses)
        edge("Resume")
        *_, last = statuses
    assert last["status"]["state"] == "RUN_STATE_ENDED"
    assert last["status"]["step"] == str(STEPS)


def refuse_what_cannot_be(edge):
    for request, says in [
        ({}, "nothing to pin; give cut, bits, staleness or trainer"),
        ({"cut": 0}, "cut"),
        ({"cut": 99}, "cut"),
        ({"bits": 9}, "bits is 9; it must be one of 1, 2, 3"),
        ({"staleness": 65}, "staleness is 65; the trainer's limit is 64"),
        ({"cut": 1, "bits": 9}, "bits is 9"),
    ]:
        code, sentence = edge.refused("Pin", request)
        assert (code, says in sentence) == ("invalid_argument", True), sentence
    assert edge("GetStatus", remember=False)["status"]["pinned"] == {}, "and none of it holds"
    for document, says in [("{", "not JSON"), (json.dumps({**LABELS_STAY, "tiles": []}), "nobody has block 0")]:
        code, sentence = edge.refused("Place", {"documentJson": document})
        assert (code, says in sentence) == ("invalid_argument", True), sentence
    code, sentence = edge.refused("SetPlanner", {"planner": "greedy"})
    assert (code, "no decision engine runs" in sentence) == ("failed_precondition", True)
    for name, request in [
        ("Watch", {"interval": "0.01s"}),
        ("Watch", {"interval": "-1s"}),
        ("SetPlanner", {}),
        ("SetLogLevel", {}),
    ]:
        assert edge.refused(name, request)[0] == "invalid_argument", name


def use_the_commands(edge):
    """On the run that stands still."""

    def agent(*arguments):
        return command(agent_app, *arguments, f"--control={edge.target}")

    status = edge("GetStatus", remember=False)["status"]
    assert status["sessionId"] in agent("status")
    shown = json.loads(agent("status", "--json"))["status"]
    assert shown.keys() == status.keys()
    assert "training stands still before step" in agent("pause")
    assert agent("pin", "--cut", "3", "--bits", "8") == "pinned: cut 3, bits 8\n"
    assert edge.watch_until(lambda now: now["deployment"]["edgeBlocks"] == 3)["deployment"]["codec"] == "uniform8"
    assert agent("release", "--bits") == "pinned: cut 3\n"
    assert agent("pin", "--bits", "32") == "pinned: cut 3, bits 32\n"
    assert agent("release") == "pinned: nothing\n"
    assert agent("checkpoint") == f"every worker has a checkpoint before step {status['step']}\n"
    assert status["sessionId"] in agent("sessions").replace("\n", "")
    assert edge("GetHistory") == json.loads(agent("history", "--json")) == {}
    assert agent("log-level", "info") == "the log level is info\n"
    with pytest.raises(RefusedError, match="no decision engine runs"):
        agent("planner", "fixed")
    with pytest.raises(RefusedError, match=r"a cut of 99|cut is 99|cut 99"):
        agent("pin", "--cut", "99")


def steer_an_engine(edge, trainer):
    edge.watch_until(lambda status: {"uplinkBitsPerSecond", "downlinkBitsPerSecond"} <= status.keys())
    assert edge.health("training") == "SERVING"
    assert edge("SetPlanner", {"planner": "fixed"}) == {"planner": "fixed"}
    fixed = edge("GetStatus", remember=False)["status"]
    assert fixed["planner"] == "fixed"
    edge("Pin", {"cut": 3, "bits": 4, "staleness": 1}, remember=False)
    edge.watch_until(
        lambda status: (
            (
                status["deployment"]["edgeBlocks"],
                status["deployment"]["codec"],
                status["deployment"].get("stalenessLimit"),
            )
            == (3, "uniform4", 1)
        )
    )
    command(agent_app, "release", f"--control={edge.target}")
    edge.watch_until(lambda status: status["deployment"]["edgeBlocks"] == fixed["deployment"]["edgeBlocks"])
    code, sentence = edge.refused("SetPlanner", {"planner": "jointdnn"})
    assert (code, sentence.startswith('the planner is "jointdnn"; a run has greedy, ')) == ("invalid_argument", True)
    code, sentence = edge.refused("Drain", {"leave": True})
    assert (code, sentence.startswith("this device is in no group")) == ("failed_precondition", True)
    edge("TakeCheckpoint", remember=False)
    edge("Pause", remember=False)
    with curl_stream(edge.target, f"{EDGE}/Watch", OFTEN) as statuses:
        next(statuses)
        assert edge("Drain") == {}
        *_, last = statuses
    assert last["status"]["state"] == "RUN_STATE_ENDED"
    trainer.watch_until(lambda status: "sessions" not in status)


def answers_of_a_handover(folder):
    """The answers of an agent that is handed over from one trainer to another."""
    socket = f"unix:{folder}/third.sock"
    with trainer_process(PEERS_ALLOWED) as (_, here), trainer_process(PEERS_ALLOWED) as (_, there):
        trainers = f'trainers=[{{name="here", address="{here}"}}, {{name="there", address="{there}"}}]'
        placed = [*(flag for flag in SETTINGS if "deployment.cut" not in flag), 'placement={edge="0:2", here="2:"}']
        with agent_process(f"control.listen={socket}", trainers, *placed, SLOWLY) as (agent, said):
            said.first_event("controlled at")
            edge = Operator(socket, EDGE)
            edge.watch_until(lambda status: status["state"] == "RUN_STATE_TRAINING")
            roles = [trainer["role"] for trainer in edge("ListTrainers")["trainers"]]
            assert roles == ["TRAINER_ROLE_MEMBER", "TRAINER_ROLE_CANDIDATE"]
            code, sentence = edge.refused("Handover", {"trainer": "nowhere"})
            assert (code, "'nowhere' is not configured" in sentence) == ("invalid_argument", True)
            assert edge("Handover", {"trainer": "there"})["fromTrainer"] == "here"
            table = command(agent_app, "trainers", f"--control={socket}")
            assert re.search(r"here\b.*\bnone\b.*\byes", table)
            assert re.search(r"there\b.*\bmember\b.*\b2:4\b.*\byes", table)
            edge("Drain", remember=False)
            assert agent.wait(60) == ExitCode.TERMINATED
    return {name: edge.answers[name] for name in ("ListTrainers", "Handover")}


def close_sessions(operator):
    kept = operator("ListSessions")["sessions"]
    assert [session["state"] for session in kept] == ["TRAINER_SESSION_STATE_KEPT"]
    session = kept[0]["sessionId"]
    sessions = command(trainer_app, "sessions", f"--control={operator.target}").replace("\n", "")
    assert session in sessions
    assert operator("CloseSession", {"sessionId": session, "resumable": True}) == {}
    assert operator("ListSessions", remember=False)["sessions"] == kept
    closed = command(trainer_app, "close", session, f"--control={operator.target}")
    assert closed == f"session {session} is closed; nothing is kept of it\n"
    assert operator("ListSessions", remember=False) == {}
    assert operator.refused("CloseSession", {"sessionId": session})[0] == "not_found"
    (group,) = operator("ListGroups")["groups"]
    assert [(member.get("rank", 0), member["awaited"]) for member in group["members"]] == [(0, True), (1, True)]
    assert operator("FreeRank", {"group": "line", "rank": 1}) == {}
    assert command(trainer_app, "free", "line", "1", f"--control={operator.target}") == (
        "rank 1 of group line was nobody's\n"
    )
    assert operator.refused("FreeRank", {"group": "line", "rank": 2})[0] == "not_found"
    assert operator.refused("SetLogLevel")[0] == "invalid_argument"
    assert operator("SetLogLevel", {"level": "LOG_LEVEL_DEBUG"})["previous"] == "LOG_LEVEL_INFO"
    assert "0 of 8" in command(trainer_app, "status", f"--control={operator.target}")
    with curl_stream(operator.target, f"{TRAINER}/Watch", OFTEN) as statuses:
        operator.answers["Watch"] = next(statuses)
        assert operator("Drain") == {}
        *_, last = statuses
    assert last["status"]["state"] == "TRAINER_STATE_STOPPING"


@pytest.mark.slow
def test_every_call_of_both_services_was_made(answers):
    services = control_pb2.DESCRIPTOR.services_by_name.values()
    assert answers.keys() == {
        f"{service.full_name}/{method.name}" for service in services for method in service.methods
    }


ROW = re.compile(r"^\| `(edge-agent|cloud-trainer) [^|]*` \| `(\w+)`(?: `[^|]*`)? \| (?:`([^|]*)`)?", re.MULTILINE)
BLOCK = re.compile(r"^`(\w+/\w+)` answers[^\n]*:\n\n```json\n(.*?)```", re.MULTILINE | re.DOTALL)
SERVICES = {"edge-agent": EDGE, "cloud-trainer": TRAINER}
OPTIONAL = {
    *("uplinkBitsPerSecond", "downlinkBitsPerSecond", "roundTripSeconds", "secondsPerStep", "samplesPerSecond"),
    *("loss", "accuracy", "queues"),
}
"""Fields that a run may or may not know yet at the moment of a call."""


def shape(value):
    """Return the part of an answer that must be as in the document: names of fields and of enums."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in OPTIONAL}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return value if isinstance(value, str) and re.fullmatch(r"[A-Z]+(_[A-Z]+)+", value) else type(value).__name__


@pytest.mark.slow
def test_the_document_shows_every_call_and_what_it_really_answers(answers):
    page = DOCUMENT.read_text()
    rows = {f"{SERVICES[program]}/{method}": answer for program, method, answer in ROW.findall(page)}
    assert rows.keys() == answers.keys()
    shown = {method: json.loads(answer) for method, answer in rows.items() if answer}
    shown |= {f"isthmus.v1.{method}": json.loads(answer) for method, answer in BLOCK.findall(page)}
    left = {f"{EDGE}/{name}" for name in ("Watch", "GetHistory", "ListTrainers", "ListSessions")}
    left |= {f"{TRAINER}/{name}" for name in ("Watch", "GetStatus", "ListGroups", "ListSessions")}
    assert answers.keys() - shown.keys() == left, "one status is shown, and no list: describe tells the others"
    for method, answer in shown.items():
        assert shape(answer) == shape(answers[method]), f"{method} answers\n{json.dumps(answers[method], indent=2)}"
