"""Rate of a link between two trainers, measured by one of them because the agent asks for it, or while they train."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from benchmarks.net import Relay
from isthmus import run_training
from shared.client.link_measurement import MOST_BYTES
from shared.errors import FencedError, RefusedError, UnreachableError
from shared.wire.isthmus.v1 import control_pb2
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.integration.placements.test_figures import shown_links
from tests.integration.placements.test_links_of_trainers import BATCHES, chain, standing
from tests.support.experiments import flags
from tests.support.placement_kinds import addresses_of, flags_of, running_trainers
from tests.support.running import Listening, edge_config, held_port

RATE = 2e7
"""Rate of a slow link, in bits per second."""
LONG = ["training.max_steps=100_000", "training.epochs=100_000", "training.evaluate_every_epochs=0"]
"""Far more than a test waits for."""
pytestmark = pytest.mark.usefixtures("one_thread")


async def measured(agent, ticket, address=None, term=None):
    address = address or agent.trainers["far"].address
    peer = pb.Peer(worker="far", address=address, session_id=agent.sessions["far"], ticket=ticket)
    fence = agent.fence if term is None else pb.Fence(session_term=term)
    request = pb.MeasureLinkRequest(session_id=agent.sessions["near"], fence=fence, peer=peer)
    return await agent.trainers["near"].measure_link(request)


@pytest.mark.slow
async def test_a_trainer_finds_what_its_link_to_another_one_carries_and_training_goes_on():
    async with standing(chain()) as (agent, servers):
        ticket = await agent.offer("far", "near", [2])
        host, _, port = servers["far"].address.rpartition(":")
        ways = {"uplink_bits_per_second": 4e7, "downlink_bits_per_second": 1.6e8, "one_way_delay_seconds": 0.02}
        async with Relay(host, int(port), **ways) as relay:
            found = await measured(agent, ticket, relay.address)
        assert found.uplink == pytest.approx(4e7, rel=0.3)
        assert found.downlink == pytest.approx(1.6e8, rel=0.3)
        assert 0.04 <= found.round_trip_seconds < 0.2
        assert MOST_BYTES < 6e6
        await agent.dial()
        await agent.train(0, BATCHES)


async def test_without_a_ticket_the_way_back_stays_unknown():
    async with standing(chain()) as (agent, _):
        found = await measured(agent, "none")
        assert found.uplink > 0
        assert not found.HasField("downlink")


async def test_only_the_agent_that_joined_last_has_a_link_measured():
    async with standing(chain()) as (agent, _):
        await agent.join()
        with pytest.raises(FencedError, match="term 2; a call of term 1 came"):
            await measured(agent, "none", term=1)


async def test_a_trainer_measures_no_link_to_an_address_that_its_operator_does_not_allow():
    async with standing(chain(), near=()) as (agent, _):
        with pytest.raises(RefusedError, match=r"may not dial .*\(peers\.allowed\)"):
            await measured(agent, "none")


async def test_a_trainer_that_is_not_there_is_named():
    async with standing(chain()) as (agent, _):
        sentence = "worker 'near' cannot measure the link to 'far'"
        with held_port() as port, pytest.raises(UnreachableError, match=sentence):
            await measured(agent, "none", f"127.0.0.1:{port}")


async def test_trainers_show_what_their_links_carry_while_a_session_trains(tmp_path):
    known = asyncio.Event()

    def look(progress):
        if progress.link_rates and None not in progress.link_rates.values():
            known.set()

    async with running_trainers() as servers, AsyncExitStack() as stack:
        addresses = {}
        for name, address in addresses_of(servers).items():
            host, _, port = address.rpartition(":")
            relay = Relay(host, int(port), uplink_bits_per_second=RATE, downlink_bits_per_second=RATE)
            addresses[name] = (await stack.enter_async_context(relay)).address
        placed = flags_of("there and back", addresses, tmp_path)
        config = edge_config(*flags("cnn", "sgd"), *LONG, *placed)
        training = asyncio.create_task(run_training(config, Listening(look)))
        training.add_done_callback(lambda _: known.set())
        await known.wait()
        assert not training.done(), training.exception()
        assert {name: shown_links(server) for name, server in servers.items()} == {
            "near": {"near>edge": pytest.approx(RATE / 8, rel=0.5), "near>far": pytest.approx(RATE / 8, rel=0.5)},
            "far": {"far>near": pytest.approx(RATE / 8, rel=0.5)},
            "cloud": {},
        }
        statuses = {name: await session_status(servers[name]) for name in ("near", "far")}
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
    assert statuses["near"].downlink_bits_per_second == pytest.approx(RATE, rel=0.5)
    assert not statuses["far"].HasField("downlink_bits_per_second"), "it has no link to the edge"


async def session_status(server):
    """Return the status of its one session that operators see."""
    control = server.service.control(server.stopping)
    (shown,) = (await control.get_status(control_pb2.TrainerControlServiceGetStatusRequest())).status.sessions
    return shown
