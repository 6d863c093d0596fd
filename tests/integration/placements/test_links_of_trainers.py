"""An agent and two trainers: features go from trainer to trainer, and nothing but a ticket opens the link between these."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from shared.client.config import TrainerAddressConfig
from shared.client.link_call import StreamListener
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import AccessError, FencedError, ProtocolError, RefusedError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkOpening
from tests.support.placed import batch_of
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import held_port, running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS = 8, 4
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, samples) for step, samples in enumerate([8, 8, 8, 5, 8, 8])]
ALLOWED = 'peers.allowed=["127.0.0.1:*"]'


def chain(near=(1, 2), far=(2, 4), version=0, staleness=0):
    """Blocks one after the other; what is after the last trainer's is the agent's again, so that labels stay."""
    tiles = [Tile(AGENT, 0, near[0], WHOLE), Tile("near", *near, WHOLE), Tile("far", *far, WHOLE)]
    tiles += [Tile(AGENT, far[1], BLOCKS, WHOLE)] if far[1] < BLOCKS else []
    workers = (AGENT, "near", "far")
    return Placement(version, BLOCKS, BATCH, workers, tuple(tiles), (Source(AGENT, WHOLE),), staleness=staleness)


BEHIND = Placement(
    0,
    BLOCKS,
    BATCH,
    (AGENT, "near", "far"),
    (Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 2, WHOLE), Tile("far", 2, 3, WHOLE), Tile("near", 3, BLOCKS, WHOLE)),
    (Source(AGENT, WHOLE),),
)
"""The agent has no link to `far`."""
PLACEMENTS = {"chain": chain(), "labels stay": chain((1, 2), (2, 3)), "behind": BEHIND}


@asynccontextmanager
async def standing(placement, *flags, near=(ALLOWED,)):
    """The agent of an open session, and its trainers by name. near: flags of that one alone."""
    async with (
        running_trainer(*near, *flags) as first,
        running_trainer(*flags) as second,
        PlacedAgent(placement, {"near": first.address, "far": second.address}) as agent,
    ):
        await agent.open()
        await agent.join()
        yield agent, {"near": first, "far": second}
        await agent.close()


def plain_state(agent, placement, batches=BATCHES):
    """The weights of one process that runs the same tiles."""
    plain = PlainTiles(list(agent.initial), placement, agent.recipe)
    for step, batch in enumerate(batches):
        plain.step(step, *batch)
    return dict(agent.initial.state_dict())


async def dialled(agent, ticket, **changes):
    """The next ticket, after dialling `far` as `near` would, with a ticket."""
    told = {
        "protocol_version": PROTOCOL_VERSION,
        "session_id": agent.sessions["far"],
        "session_term": agent.term,
        "worker": "near",
    }
    listener = StreamListener(lambda *_: None, lambda: None, lambda *_: None)
    async with TrainerClient(TrainerAddressConfig(address=agent.trainers["far"].address), LinkConfig()) as client:
        call, following = await client.link(LinkOpening(**(told | changes)), listener, ticket)
        call.cancel()
    return following


@pytest.mark.first_case
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
async def test_a_chain_of_two_trainers_is_one_process_bit_for_bit(placement):
    async with standing(placement) as (agent, _):
        await agent.dial()
        await agent.train(0, BATCHES)
        assert_same_bits(plain_state(agent, placement), await agent.state())


async def test_features_go_straight_from_trainer_to_trainer():
    async with standing(BEHIND) as (agent, servers):
        await agent.dial()
        await agent.train(0, BATCHES)
        near, far = (server.service.sessions.built[0].figures for server in servers.values())
        assert far.received_bytes == far.bytes_up > 0
        assert far.sent_bytes == far.bytes_down > 0
        assert near.bytes_up > far.bytes_up, "its own features from the agent come on top"
        assert near.sent_bytes > far.received_bytes, "it sends error gradients to the agent besides"


async def test_evaluations_take_the_same_way_and_change_nothing():
    async with standing(chain()) as (agent, _):
        await agent.dial()
        await agent.train(0, BATCHES[:3])
        before = {name: value.clone() for name, value in (await agent.state()).items()}
        first, second = await agent.evaluate(BATCHES), await agent.evaluate(BATCHES)
        assert first == second
        assert [loss.samples for loss in first] == [len(labels) for _, labels in BATCHES]
        assert_same_bits(before, await agent.state())
        await agent.train(3, BATCHES[3:])
        assert_same_bits(plain_state(agent, chain()), await agent.state())


async def test_the_links_of_another_placement_are_dialled_again():
    after = chain((1, 3), (3, 4), version=1)
    async with standing(chain()) as (agent, _):
        await agent.dial()
        await agent.train(0, BATCHES[:3])
        await agent.commit(after, 3)
        await agent.train(3, BATCHES[3:])
        plain = PlainTiles(list(agent.initial), chain(), agent.recipe)
        for step, batch in enumerate(BATCHES):
            if step == 3:
                plain.change(after)
            plain.step(step, *batch)
        assert_same_bits(dict(agent.initial.state_dict()), await agent.state())


async def test_an_agent_that_joins_again_goes_on_from_the_memory_of_all():
    async with standing(chain(staleness=1)) as (agent, _):
        await agent.dial()
        await agent.train(0, BATCHES[:2])
        agent.drop_links()
        said = await agent.join()
        assert all(answer.whole and answer.next_step == 2 for answer in said.values())
        await agent.dial()
        await agent.train(2, BATCHES[2:])


async def test_a_trainer_behind_another_one_can_stop_as_soon_as_the_agent_has_ended_its_links():
    async with standing(BEHIND) as (agent, servers):
        await agent.dial()
        await agent.train(0, BATCHES[:2])
        stopping = asyncio.create_task(servers["far"].service.stop(seconds=1e6))
        await agent.heard_stopping("far")
        await agent.end_links()
        await stopping


async def test_a_ticket_opens_its_link_once():
    async with standing(chain()) as (agent, _):
        ticket = agent.tickets["far"]["near"]
        following = await dialled(agent, ticket)
        with pytest.raises(AccessError, match="the ticket opens no link of this trainer"):
            await dialled(agent, ticket)
        assert await dialled(agent, following) not in ("", ticket, following)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"worker": AGENT}, AccessError),
        ({"worker": "far"}, ProtocolError),
        ({"session_term": 7}, FencedError),
        ({"evaluation": 1}, ProtocolError),
        ({"protocol_version": PROTOCOL_VERSION + 1}, ProtocolError),
    ],
)
async def test_what_is_refused_uses_no_ticket_up(changes, error):
    async with standing(chain()) as (agent, _):
        ticket = agent.tickets["far"]["near"]
        with pytest.raises(error):
            await dialled(agent, ticket, **changes)
        await agent.dial()
        await agent.train(0, BATCHES)


async def test_a_ticket_of_another_session_opens_nothing():
    async with standing(chain()) as (agent, servers):
        addresses = {name: server.address for name, server in servers.items()}
        async with PlacedAgent(chain(), addresses) as other:
            await other.open()
            await other.join()
            with pytest.raises(AccessError, match="the ticket opens no link"):
                await dialled(agent, other.tickets["far"]["near"])
            await other.dial()
            await other.train(0, BATCHES)
            await other.close()


async def test_tickets_of_an_earlier_term_or_placement_are_withdrawn():
    async with standing(chain()) as (agent, _):
        of_first_term = agent.tickets["far"]["near"]
        await agent.join()
        with pytest.raises(AccessError):
            await dialled(agent, of_first_term)
        of_first_placement = agent.tickets["far"]["near"]
        await agent.dial()
        await agent.commit(chain((1, 3), (3, 4), version=1), 0)
        with pytest.raises(AccessError):
            await dialled(agent, of_first_placement)


async def test_a_ticket_lets_nobody_make_another_call():
    async with standing(chain()) as (agent, _):
        header = (("authorization", f"Ticket {agent.tickets['far']['near']}"),)
        async with grpc.aio.insecure_channel(agent.trainers["far"].address) as channel:
            method = channel.unary_unary("/isthmus.v1.TrainerService/GetSession")
            request = pb.GetSessionRequest(session_id=agent.sessions["far"]).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(request, metadata=header)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_only_the_agent_that_joined_last_has_a_trainer_dial_and_only_along_a_link():
    async with standing(chain()) as (agent, _):
        await agent.join()
        agent.term -= 1
        with pytest.raises(FencedError, match="term 2; a call of term 1 came"):
            await agent.dial_peers(agent.tickets)
        agent.term += 1
        nobody = pb.Peer(worker="nobody", address=agent.trainers["far"].address)
        request = pb.DialPeersRequest(session_id=agent.sessions["near"], fence=agent.fence, peers=[nobody])
        with pytest.raises(RefusedError, match="no link between 'near' and 'nobody' under this placement"):
            await agent.trainers["near"].dial_peers(request)
        await agent.dial()
        await agent.train(0, BATCHES)


async def test_a_trainer_whose_operator_allows_no_address_dials_nobody():
    async with standing(chain(), near=()) as (agent, _):
        with pytest.raises(RefusedError, match=r"may not dial .*\(peers\.allowed\)"):
            await agent.dial()


async def test_a_link_that_a_trainer_cannot_dial_is_shown_until_it_is_up():
    async with standing(chain()) as (agent, servers):
        near, session = servers["near"], agent.sessions["near"]

        def shown():
            labels = {"session": session, "worker": "far"}
            return near.metrics.registry.get_sample_value("isthmus_session_link_missing", labels)

        with held_port() as port:  # no process listens there
            told = {"session_id": agent.sessions["far"], "ticket": agent.tickets["far"]["near"]}
            nowhere = pb.Peer(worker="far", address=f"127.0.0.1:{port}", **told)
            request = pb.DialPeersRequest(session_id=session, fence=agent.fence, peers=[nowhere])
            await agent.trainers["near"].dial_peers(request)
        assert near.service.sessions.built[0].links.missing == ["far"]
        assert shown() == 1
        await agent.dial()
        await agent.train(0, BATCHES)
        assert near.service.sessions.built[0].links.missing == []
        assert shown() is None


async def test_a_peer_without_the_session_ends_the_agent_s_link_with_a_sentence_that_names_it():
    async with standing(BEHIND) as (agent, _):
        await agent.dial()
        await agent.train(0, BATCHES[:2])
        await agent.trainers["far"].close_session(agent.sessions["far"], agent.fence, resumable=True)
        with pytest.raises(FencedError, match="worker 'far' cannot go on"):
            await agent.train(2, BATCHES[2:])
