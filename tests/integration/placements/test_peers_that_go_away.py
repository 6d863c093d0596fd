"""Trainers behind a trainer that go away and come back, and trainers that ask each other who they are."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from cloud_trainer.control.certificates import Identity, issue, make_authority
from isthmus import run_training
from shared.client.config import ClientTlsConfig, TrainerAddressConfig
from shared.client.credentials import trainer_access
from shared.errors import AccessError, SessionLostError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from tests.support.experiments import flags
from tests.support.peers.strangers import Doorkeeper
from tests.support.placed import batch_of
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import PlainTiles
from tests.support.running import Listening, edge_config, held_port, running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE = Rows(0, 8)
BEHIND = Placement(
    0,
    4,
    8,
    (AGENT, "near", "far"),
    (Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 2, WHOLE), Tile("far", 2, 3, WHOLE), Tile("near", 3, 4, WHOLE)),
    (Source(AGENT, WHOLE),),
)
"""The agent has no link to `far`."""
ALLOWED = 'peers.allowed=["127.0.0.1:*"]'
BATCHES = [batch_of(step, 8) for step in range(6)]


def plain_tiles(agent):
    plain = PlainTiles(list(agent.initial), BEHIND, agent.recipe)
    for step, batch in enumerate(BATCHES):
        plain.step(step, *batch)
    return dict(agent.initial.state_dict())


@pytest.mark.slow
async def test_a_trainer_that_comes_back_without_the_session_is_joined_and_restored(tmp_path):
    async with AsyncExitStack() as stack:
        port = stack.enter_context(held_port())
        near_flags = (ALLOWED, f"checkpoints.location={tmp_path / 'near'}")
        far_flags = (f"server.listen=127.0.0.1:{port}", f"checkpoints.location={tmp_path / 'far'}")
        near = await stack.enter_async_context(running_trainer(*near_flags))
        agent = PlacedAgent(BEHIND, {"near": near.address, "far": f"127.0.0.1:{port}"})
        async with running_trainer(*far_flags, "server.stop_seconds=0.01"):
            await stack.enter_async_context(agent)
            await agent.begin()
            await agent.train(0, BATCHES[:3])
            own = await agent.checkpoint(3)
        async with running_trainer(*far_flags):
            with pytest.raises(SessionLostError, match=r"worker 'far' cannot go on: .*the ticket opens no link"):
                await agent.train(3, BATCHES[3:])
            agent.drop_links()
            said = await agent.join()
            assert (said["near"].whole, said["far"].whole) == (True, False)
            await agent.restore(0, 3, own, BEHIND)
            await agent.dial()
            await agent.train(3, BATCHES[3:])
            assert_same_bits(plain_tiles(agent), await agent.state())
            await agent.close()


@pytest.fixture
def door(tmp_path):
    (tmp_path / "door").mkdir()
    return Doorkeeper(tmp_path / "door")


def access_of(door, folder):
    """The agent's own certificate, and the token of the subject "ours"."""
    issue(door.authority, Identity("pi-7"), 1).write(folder / "agent.pem", folder / "agent.key")
    tls = ClientTlsConfig(ca=folder / "door" / "ca.pem", certificate=folder / "agent.pem", key=folder / "agent.key")
    return trainer_access(TrainerAddressConfig(token=door.tokens["ours"]), tls)


async def trained(door, folder, *peers_tls):
    """A session at trainers that ask for certificates and tokens. peers_tls: flags of the one that dials."""
    issue(door.authority, Identity("near"), 1).write(folder / "near.pem", folder / "near.key")
    async with (
        running_trainer(*door.flags, ALLOWED, *peers_tls) as near,
        running_trainer(*door.flags) as far,
        PlacedAgent(BEHIND, {"near": near.address, "far": far.address}, access=access_of(door, folder)) as agent,
    ):
        await agent.begin()
        try:
            await agent.train(0, BATCHES)
            return plain_tiles(agent), await agent.state()
        finally:
            await agent.close()


async def test_a_trainer_with_a_ticket_and_a_certificate_needs_no_token(door, tmp_path):
    own = (f"peers.tls.certificate={tmp_path / 'near.pem'}", f"peers.tls.key={tmp_path / 'near.key'}")
    assert_same_bits(*await trained(door, tmp_path, f"peers.tls.ca={tmp_path / 'door' / 'ca.pem'}", *own))


async def test_a_trainer_whose_certificate_somebody_else_has_signed_is_not_dialled(door, tmp_path):
    make_authority("somebody's", 1).write(tmp_path / "theirs.pem", tmp_path / "theirs.key")
    with pytest.raises(
        AccessError, match=r"worker 'far' cannot go on: no secure connection .*\(peers\.tls\.ca is .*\)$"
    ):
        await trained(door, tmp_path, f"peers.tls.ca={tmp_path / 'theirs.pem'}")


def chained(near, far, folder):
    """A real agent's configuration, with blocks at two trainers one after the other."""
    return edge_config(
        *flags("cnn", "adam"),
        f'trainers=[{{name="near", address="{near}"}}, {{name="far", address="{far}"}}]',
        "placement.edge=0:1",
        "placement.near=1:2",
        "placement.far=2:",
        "training.max_steps=60",
        "training.epochs=100",
        "checkpoints.every_steps=7",
        f"checkpoints.location={folder / 'edge'}",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_seconds", [pytest.param(60, id="told", marks=pytest.mark.full), pytest.param(0.01, id="sudden")]
)
async def test_an_agent_goes_on_bit_for_bit_when_a_trainer_behind_another_one_is_restarted(tmp_path, stop_seconds):
    reached = asyncio.Event()

    def look(progress):
        if progress.steps >= 20:
            reached.set()

    with held_port() as port:
        address = f"127.0.0.1:{port}"
        kept = (f"server.listen={address}", f"checkpoints.location={tmp_path / 'far'}")
        async with running_trainer(ALLOWED, f"checkpoints.location={tmp_path / 'near'}") as near:
            chosen = chained(near.address, address, tmp_path)
            async with running_trainer(*kept, f"server.stop_seconds={stop_seconds}"):
                training = asyncio.create_task(run_training(chosen, Listening(look)))
                await reached.wait()
            assert not training.done()
            async with running_trainer(*kept):
                result = await training
    assert result.summary.steps == 60
    assert_same_bits(plain_state(chosen), result.module.state_dict())
