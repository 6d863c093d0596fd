"""Permission and ability to dial are asked before anything rests on them; a link that stays down ends a run with its
name."""

import asyncio
import json

import pytest
from safetensors.torch import load_file

from cloud_trainer.peers.dialer import PeerDialer
from edge_agent.main import app as agent_app
from isthmus import run_training
from shared.errors import ExitCode, RefusedError, UnreachableError
from tests.support.commands import assert_one_sentence, command
from tests.support.killed_chain import CHECKPOINT_STEPS, CHOSEN, STEPS, Chain
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, run_agent, running_trainer

pytestmark = [pytest.mark.usefixtures("one_thread")]
PLACED = {"edge": "0:1", "near": "1:2", "far": "2:3", "cloud": "3:"}
WITHOUT_FAR = {"edge": "0:1", "near": "1:2", "cloud": "2:"}


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


def start_near(chain, *allowed):
    """Start the nearest trainer again, which may dial these trainers alone."""
    chain.kill("near")
    addresses = json.dumps([f"127.0.0.1:{chain.port(name)}" for name in allowed])
    chain.start("near", settings=[f"peers.allowed={addresses}"])


def finished(chain, agent, expected):
    process, said = agent
    process.wait(240)
    said.join()
    assert process.returncode == 0, said
    assert_same_bits(expected, load_file(chain.output / "model.safetensors"))
    return [block["worker"] for block in json.loads((chain.output / "summary.json").read_text())["blocks"]]


@pytest.mark.slow
def test_a_placement_with_a_link_that_is_not_allowed_is_refused_in_words_and_the_run_goes_on(tmp_path, expected):
    with Chain(tmp_path, None, PLACED) as chain:
        start_near(chain, "far")
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        (tmp_path / "wanted.json").write_text(json.dumps(chain.document(WITHOUT_FAR)))
        with pytest.raises(RefusedError) as refused:
            command(agent_app, "place", str(tmp_path / "wanted.json"), f"--control={chain.control}")
        assert f"worker 'near' cannot dial 'cloud' at 127.0.0.1:{chain.port('cloud')}: its operator" in str(
            refused.value
        )
        assert finished(chain, agent, expected) == ["edge", "near", "far", "cloud"]
        events = {event["event"] for event in said.events()}
        assert "the placement stays" in events
        assert "went back to a checkpoint" not in events


@pytest.mark.full
def test_a_replacement_takes_who_may_be_dialled(tmp_path, expected):
    with Chain(tmp_path, 1, PLACED) as chain:
        start_near(chain, "far")
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        chain.kill("far")
        said.first_event("trainers replaced")
        assert finished(chain, agent, expected) == ["edge", "near", "edge", "cloud"], "near may not dial cloud"


@pytest.mark.slow
def test_a_run_whose_trainers_may_not_dial_each_other_ends_before_its_first_step(tmp_path):
    with Chain(tmp_path, None, PLACED) as chain:
        start_near(chain, "cloud")
        flags = [f"--set={flag}" for flag in chain.flags()]
        done = run_agent("run", *flags)
        address = f"127.0.0.1:{chain.port('far')}"
        says = (
            f"worker 'near' cannot dial 'far' at {address}: its operator has not allowed that address (peers.allowed)"
        )
        assert_one_sentence("edge-agent", done, ExitCode.REFUSED, says)


@pytest.fixture
async def two_trainers(tmp_path, monkeypatch):
    """The flags of a run on two trainers in this process; and `firewall`, set where one cannot dial the other any more."""
    firewall, client = asyncio.Event(), PeerDialer.client
    monkeypatch.setattr(
        PeerDialer,
        "client",
        lambda dialer, address, *more: client(dialer, "127.0.0.1:1" if firewall.is_set() else address, *more),
    )
    async with running_trainer(PEERS_ALLOWED) as near, running_trainer(PEERS_ALLOWED) as far:
        trainers = f'trainers=[{{name="near", address="{near.address}"}}, {{name="far", address="{far.address}"}}]'
        placed = ["placement.edge=0:1", "placement.near=1:2", "placement.far=2:"]
        yield [*CHOSEN, trainers, *placed, f"checkpoints.location={tmp_path}"], firewall, far


@pytest.mark.slow
async def test_a_link_that_cannot_come_up_ends_the_run_before_its_first_step_and_says_whose_it_is(two_trainers):
    flags, firewall, far = two_trainers
    firewall.set()
    with pytest.raises(UnreachableError, match=rf"worker 'near' cannot dial 'far' at {far.address}: .*"):
        await run_training(edge_config(*flags))


@pytest.mark.full
async def test_a_link_that_stays_down_ends_the_run_in_the_end_and_says_whose_it_is(two_trainers, monkeypatch):
    flags, firewall, far = two_trainers
    monkeypatch.setattr("edge_agent.sessions.liveness_monitor.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("edge_agent.sessions.links_between.EVERY_SECONDS", 0.1)
    monkeypatch.setattr("edge_agent.coordinator.table.PARTED_SECONDS", 1.0)

    def progressed(progress):
        if progress.steps == STEPS // 4 and not firewall.is_set():
            firewall.set()
            (session,) = far.service.sessions.built
            session.attachment.give_up(0)  # all its links are lost; the agent's is dialled again

    says = rf"worker 'near' cannot dial 'far' at {far.address}: .*; no step was done for \d+ s"
    with pytest.raises(UnreachableError, match=says):
        await run_training(edge_config(*flags), Listening(progressed))


@pytest.mark.slow
async def test_a_link_that_is_down_for_a_while_costs_no_step(two_trainers, monkeypatch, expected):
    flags, firewall, far = two_trainers
    monkeypatch.setattr("edge_agent.sessions.liveness_monitor.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("edge_agent.sessions.links_between.EVERY_SECONDS", 0.1)

    def progressed(progress):
        if progress.steps == STEPS // 4 and not firewall.is_set():
            firewall.set()
            (session,) = far.service.sessions.built
            session.attachment.give_up(0)
            asyncio.get_running_loop().call_later(1.0, firewall.clear)

    result = await run_training(edge_config(*flags), Listening(progressed))
    assert_same_bits(expected, result.module.state_dict())
