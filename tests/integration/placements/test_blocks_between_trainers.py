"""Blocks that go straight from trainer to trainer: what a ticket for them lets, and what a fetch that fails leaves."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
import torch

from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.config import LinkConfig
from shared.errors import AccessError, BusyError, FencedError, ProtocolError, RefusedError, UnreachableError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.tensor_wire import to_wire
from shared.training import block_state
from shared.transport.stream.framing import block_key, chunks
from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.placed import batch_of
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS = 8, 4
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, BATCH) for step in range(6)]
ALLOWED = 'peers.allowed=["127.0.0.1:*"]'


def chain(near, far, version=0):
    """Blocks one after the other, the first at the agent."""
    tiles = (Tile(AGENT, 0, near[0], WHOLE), Tile("near", *near, WHOLE), Tile("far", *far, WHOLE))
    return Placement(version, BLOCKS, BATCH, (AGENT, "near", "far"), tiles, (Source(AGENT, WHOLE),))


BEFORE, AFTER = chain((1, 3), (3, 4)), chain((1, 2), (2, 4), version=1)
MOVES = [2]
"""The block that goes from `near` to `far`."""


@asynccontextmanager
async def standing(*of_far):
    """The agent of a session that has trained three steps, its links ended, and the trainers by name. of_far: its flags."""
    async with (
        running_trainer(ALLOWED) as near,
        running_trainer(*(of_far or (ALLOWED,))) as far,
        PlacedAgent(BEFORE, {"near": near.address, "far": far.address}) as agent,
    ):
        await agent.begin()
        await agent.train(0, BATCHES[:3])
        await agent.end_links()
        yield agent, {"near": near, "far": far}
        await agent.close()


async def trained_on(agent, after=None):
    """Train the other steps, under the placement of before or another one; the weights are those of one process."""
    if after is None:
        await agent.join()
        await agent.dial()
    else:
        await agent.commit(after, 3)
    await agent.train(3, BATCHES[3:])
    plain = PlainTiles(list(agent.initial), BEFORE, agent.recipe)
    for step, batch in enumerate(BATCHES):
        if step == 3 and after is not None:
            plain.change(after)
        plain.step(step, *batch)
    assert_same_bits(dict(agent.initial.state_dict()), await agent.state())


async def got(agent, ticket, block=2, session=None):
    """The state of a block, downloaded from `near` with a ticket alone."""
    address = TrainerAddressConfig(address=agent.trainers["near"].address)
    async with TrainerClient(address, LinkConfig()) as client:
        named = session or agent.sessions["near"]
        return await client.download_block(named, block, 1 << 20, weights_only=False, ticket=ticket)


async def test_a_block_that_is_fetched_goes_on_bit_for_bit():
    async with standing() as (agent, _):
        await trained_on(agent, AFTER)


async def test_a_ticket_gives_the_offered_blocks_as_often_as_wanted_and_no_others():
    async with standing() as (agent, _):
        ticket = await agent.offer("near", "far", MOVES)
        assert await got(agent, ticket) == await got(agent, ticket)
        with pytest.raises(AccessError, match="gives no block"):
            await got(agent, ticket, block=1)


async def test_a_ticket_gives_nothing_of_another_session_of_the_same_agent():
    async with standing() as (agent, servers):
        addresses = {name: server.address for name, server in servers.items()}
        async with PlacedAgent(BEFORE, addresses) as other:
            await other.open()
            await other.join()
            ticket = await agent.offer("near", "far", MOVES)
            with pytest.raises(AccessError, match="gives no block"):
                await got(agent, ticket, session=other.sessions["near"])
            await other.close()


@pytest.mark.parametrize("how", ["join", "commit", "offer"])
async def test_a_ticket_is_withdrawn_by_another_agent_or_placement_or_offer(how):
    async with standing() as (agent, _):
        ticket = await agent.offer("near", "far", MOVES)
        match how:
            case "join":
                await agent.join()
            case "commit":
                await agent.commit(chain((1, 3), (3, 4), version=1), 3)
            case _:
                await agent.offer("near", "far", [1])
        with pytest.raises(AccessError, match="gives no block"):
            await got(agent, ticket)


async def test_a_ticket_for_blocks_lets_nobody_make_another_call_and_one_for_a_link_gives_no_block():
    async with standing() as (agent, _):
        await agent.join()
        with pytest.raises(AccessError, match="gives no block"):
            await got(agent, agent.tickets["far"]["near"])
        header = (("authorization", f"Ticket {await agent.offer('near', 'far', MOVES)}"),)
        request = pb.GetSessionRequest(session_id=agent.sessions["near"]).SerializeToString()
        async with grpc.aio.insecure_channel(agent.trainers["near"].address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/isthmus.v1.TrainerService/GetSession")(request, metadata=header)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("worker", "blocks", "error", "says"),
    [
        ("far", [3], ProtocolError, r"does not hold blocks \[3\]; it holds \[1, 2\]"),
        ("far", [4], ProtocolError, r"does not hold blocks \[4\]"),
        ("far", [2, 2], RefusedError, "each once"),
        ("far", [], RefusedError, "one or more"),
        ("near", [2], RefusedError, "'near' is no other trainer"),
        (AGENT, [2], RefusedError, "'edge' is no other trainer"),
        ("no name", [2], RefusedError, "'no name' is no other trainer"),
    ],
)
async def test_only_blocks_that_are_held_are_offered_and_only_to_another_trainer(worker, blocks, error, says):
    async with standing() as (agent, _):
        with pytest.raises(error, match=says):
            await agent.offer("near", worker, blocks)


async def test_only_the_agent_that_joined_last_moves_blocks():
    async with standing() as (agent, _):
        await agent.join()
        ticket = await agent.offer("near", "far", MOVES)
        agent.term -= 1
        with pytest.raises(FencedError, match="term 2; a call of term 1 came"):
            await agent.offer("near", "far", MOVES)
        with pytest.raises(FencedError, match="term 2; a call of term 1 came"):
            await agent.fetch("far", "near", ticket, MOVES)
        agent.term += 1
        await trained_on(agent, AFTER)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("blocks", "error", "says"),
    [
        ([3], ProtocolError, "block 3 cannot be replaced now"),
        ([4], RefusedError, "there is no block 4"),
        ([2, 2], RefusedError, "each once"),
        ([], RefusedError, "one or more"),
        ([1], RefusedError, "'far' cannot fetch blocks from 'near': .* gives no block"),
    ],
)
async def test_what_cannot_be_fetched_is_refused_and_changes_nothing(blocks, error, says):
    async with standing() as (agent, _):
        ticket = await agent.offer("near", "far", MOVES)
        with pytest.raises(error, match=says):
            await agent.fetch("far", "near", ticket, blocks)
        await trained_on(agent)


async def test_an_address_that_is_not_allowed_is_not_dialled():
    async with standing("server.max_sessions=4") as (agent, _):
        ticket = await agent.offer("near", "far", MOVES)
        with pytest.raises(RefusedError, match=r"may not dial .*\(peers\.allowed\)"):
            await agent.fetch("far", "near", ticket, MOVES)
        with pytest.raises(ProtocolError, match=r"without blocks \[2\]"):
            await agent.commit_at("far", AFTER, 3)
        await trained_on(agent)


async def test_a_block_for_which_there_is_no_memory_is_refused_until_there_is():
    async with standing() as (agent, servers):
        memory = servers["far"].service.sessions.built[0].memory
        every = (block_state.max_serialized_bytes(block, agent.recipe.optimizer) for block in agent.chain.blocks)
        limit_bytes = 2 * sum(every)
        memory.begin_upload(limit_bytes)
        ticket = await agent.offer("near", "far", MOVES)
        with pytest.raises(BusyError, match="are on their way to this session already"):
            await agent.fetch("far", "near", ticket, MOVES)
        memory.end_upload(limit_bytes)
        await agent.fetch("far", "near", ticket, MOVES)
        memory.begin_upload(limit_bytes)
        memory.end_upload(limit_bytes)
        await trained_on(agent, AFTER)


@asynccontextmanager
async def dying_peer():
    """The address of a trainer that dies in the middle of the first block that it sends."""
    server, dying = grpc.aio.server(), []

    async def download(_request, _context):
        whole = to_wire(codec_by_name("raw").encode(torch.zeros(64, dtype=torch.uint8)), block_key(2), 0)
        frame, payload = next(chunks(whole, 32))
        yield Packet(pb.DownloadBlockResponse(frame=frame), payload)
        dying.append(asyncio.create_task(server.stop(0)))
        await asyncio.Event().wait()

    handler = grpc.unary_stream_rpc_method_handler(download, response_serializer=serialize)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("isthmus.v1.TrainerService", {"DownloadBlock": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await asyncio.gather(*dying)


async def test_a_peer_that_dies_while_it_sends_leaves_the_old_placement_in_force():
    async with standing() as (agent, _), dying_peer() as address:
        with pytest.raises(UnreachableError, match="worker 'far' cannot fetch blocks from 'near'"):
            await agent.fetch("far", "near", "any", MOVES, address=address)
        with pytest.raises(ProtocolError, match=r"without blocks \[2\]"):
            await agent.commit_at("far", AFTER, 3)
        assert {answer.placement_version for answer in (await agent.join()).values()} == {0}
        await trained_on(agent)
