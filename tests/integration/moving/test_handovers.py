"""A run that is handed over from trainer to trainer: each admitted beside training, and released when none needs it.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import json

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from edge_agent.replaying.replay import replay
from edge_agent.replaying.run_record import read_record
from shared.errors import ExitCode
from shared.training.step_log import applied_steps
from tests.support.commands import assert_one_sentence, command
from tests.support.killed_chain import CHECKPOINT_STEPS, CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 600
LONG = f"training.max_steps={STEPS}", "training.epochs=40"
PLACED, BESIDE = {"edge": "0:2", "near": "2:"}, ("far", "cloud")


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN, *LONG))


def ask(chain, *arguments):
    """Give the agent a command, and return what it answers."""
    return json.loads(command(agent_app, *arguments, f"--control={chain.control}", "--json"))


def finished(chain, agent):
    """The worker of each block at the end of a run that goes well."""
    process, said = agent
    process.wait(240)
    said.join()
    assert process.returncode == 0, said
    return [block["worker"] for block in json.loads((chain.output / "summary.json").read_text())["blocks"]]


def applied(chain, worker):
    """The steps that the logs of a worker hold, one log for each of its sessions."""
    logs = (chain.folder / "steps" / worker).glob("*.steps")
    return [step for log in logs for step in applied_steps(log.read_text().splitlines()).hashes]


@pytest.mark.slow
def test_three_handovers_lose_no_step_and_change_no_bit(tmp_path, expected):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG)
        said.first_event("checkpoint at every worker", least_step=CHECKPOINT_STEPS)
        for before, name in (("near", "far"), ("far", "cloud"), ("cloud", "near")):
            assert ask(chain, "handover", name)["fromTrainer"] == before
            assert said.first_event("trainer released")["trainer"] == before
        assert finished(chain, agent) == ["edge", "edge", "near", "near"]
        assert not [event for event in said.heard if event["event"] == "went back to a checkpoint"]
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))
        assert sorted(step for name in ("near", *BESIDE) for step in applied(chain, name)) == [*range(STEPS)]
        assert applied(chain, "edge") == [*range(STEPS)]
        assert all(applied(chain, name) for name in BESIDE)


@pytest.mark.slow
def test_late_gradients_of_three_handovers_are_those_of_the_replay(tmp_path):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG, "deployment.staleness=2", "output.record=true")
        said.first_event("checkpoint at every worker", least_step=CHECKPOINT_STEPS)
        for name in ("far", "cloud", "near"):
            ask(chain, "handover", name)
        assert finished(chain, agent) == ["edge", "edge", "near", "near"]
        (path,) = chain.output.glob("*.record.jsonl")
        assert replay(read_record(path), chain.output / "model.safetensors") == STEPS


@pytest.mark.full
def test_the_trainers_are_listed_with_what_they_are_to_the_session(tmp_path):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG)
        said.first_event("checkpoint at every worker")
        chain.kill("cloud")
        near, far, cloud = ask(chain, "trainers")["trainers"]
        assert (near["name"], near["role"], near["blocks"]) == ("near", "TRAINER_ROLE_MEMBER", ["2:4"])
        assert near["reachable"]
        assert (far["role"], far["reachable"]) == ("TRAINER_ROLE_CANDIDATE", True)
        assert (cloud["role"], "reachable" in cloud) == ("TRAINER_ROLE_CANDIDATE", False)
        assert cloud["reason"]
        assert finished(chain, agent) == ["edge", "edge", "near", "near"]


@pytest.mark.slow
def test_a_pinned_trainer_has_the_blocks_and_keeps_them_until_it_is_released(tmp_path, expected):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG)
        said.first_event("checkpoint at every worker")
        assert ask(chain, "pin", "--trainer", "far")["pinned"]["trainer"] == "far"
        refused = run_agent("handover", "cloud", f"--control={chain.control}")
        assert_one_sentence("edge-agent", refused, ExitCode.REFUSED, "'far' is pinned")
        assert "trainer" not in ask(chain, "release", "--trainer")["pinned"]
        ask(chain, "handover", "cloud")
        assert finished(chain, agent) == ["edge", "edge", "cloud", "cloud"]
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))


@pytest.mark.full
def test_a_name_that_is_unknown_or_cannot_take_over_changes_nothing(tmp_path, expected):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG)
        said.first_event("checkpoint at every worker")
        chain.kill("cloud")
        for *arguments, says in (
            ("handover", "nobody", "'nobody' is not configured; there are near, far, cloud"),
            ("handover", "near", "'near' has blocks already"),
            ("handover", "far", "--from=cloud", "'cloud' has no blocks; near has"),
            ("handover", "cloud", "is away"),
            ("pin", "--trainer=nobody", "'nobody' is not configured"),
            ("pin", "--trainer=cloud", "is away"),
        ):
            refused = run_agent(*arguments, f"--control={chain.control}")
            assert_one_sentence("edge-agent", refused, ExitCode.REFUSED, says)
        assert not ask(chain, "release")["pinned"]
        assert finished(chain, agent) == ["edge", "edge", "near", "near"]
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))


@pytest.mark.full
def test_a_member_without_blocks_that_dies_holds_up_nothing(tmp_path, expected):
    with Chain(tmp_path, None, PLACED, replicas=0, beside=BESIDE) as chain:
        _, said = agent = chain.agent(*LONG)
        said.first_event("checkpoint at every worker")
        ask(chain, "handover", "far")
        chain.kill("near")
        said.first_event("checkpoint at every worker")
        said.first_event("trainer released")
        ask(chain, "handover", "cloud")
        assert finished(chain, agent) == ["edge", "edge", "cloud", "cloud"]
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))
