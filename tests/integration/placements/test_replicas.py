"""Replicas: blocks of a checkpoint that another trainer keeps, what may ask for them, and what can be restored from them."""

from contextlib import asynccontextmanager

import grpc
import pytest
import torch

from shared.checkpoint import CheckpointName
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.config import LinkConfig
from shared.errors import AccessError, BusyError, FencedError, NotStoredError, ProtocolError, RefusedError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.tensor_wire import to_wire
from shared.training import state_file
from shared.transport.stream.framing import block_key, chunks
from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.placed import batch_of
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS = 8, 4
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, BATCH) for step in range(6)]
TAKEN_AT = 3
NAME = CheckpointName(0, TAKEN_AT)


def chain(near, far, version=0):
    """Blocks one after the other, the first at the agent; a trainer may have none."""
    tiles = [Tile("near", *near, WHOLE), Tile("far", *far, WHOLE)]
    present = (Tile(AGENT, 0, 1, WHOLE), *(tile for tile in tiles if tile.blocks))
    return Placement(version, BLOCKS, BATCH, (AGENT, "near", "far"), present, (Source(AGENT, WHOLE),))


BEFORE, WITHOUT_NEAR = chain((1, 3), (3, 4)), chain((1, 1), (1, 4), version=1)


@asynccontextmanager
async def standing(folder, *of_far):
    """The agent of a session that has trained three steps and taken a checkpoint, its links ended. of_far: its flags."""
    kept = [[PEERS_ALLOWED, f"checkpoints.location={folder / name}"] for name in ("near", "far")]
    async with (
        running_trainer(*kept[0]) as near,
        running_trainer(*kept[1], *of_far) as far,
        PlacedAgent(BEFORE, {"near": near.address, "far": far.address}) as agent,
    ):
        await agent.begin()
        await agent.train(0, BATCHES[:TAKEN_AT])
        agent.own = await agent.checkpoint(TAKEN_AT)
        await agent.train(TAKEN_AT, BATCHES[TAKEN_AT : TAKEN_AT + 1])  # what is in memory is no more what is on disk
        await agent.end_links()
        yield agent
        await agent.close()


async def replicate(agent, blocks=(1, 2)):
    ticket = await agent.offer("near", "far", blocks, NAME)
    await agent.fetch("far", "near", ticket, blocks, checkpoint=NAME)
    return ticket


def replicas_in(folder):
    return sorted(path.name for path in folder.glob("far/*/*/*.block-*"))


async def test_blocks_are_restored_from_replicas_under_a_placement_without_their_trainer_bit_for_bit(tmp_path):
    async with standing(tmp_path) as agent:
        await replicate(agent)
        said = await agent.join()
        assert [(one.checkpoint.step, list(one.blocks)) for one in said["far"].replicas] == [(TAKEN_AT, [1, 2])]
        assert not said["near"].replicas
        await agent.restore(*NAME, agent.own, WITHOUT_NEAR)
        await agent.dial()
        await agent.train(TAKEN_AT, BATCHES[TAKEN_AT:])
        plain = PlainTiles(list(agent.initial), BEFORE, agent.recipe)
        for step, batch in enumerate(BATCHES):
            plain.step(step, *batch)
        assert_same_bits(dict(agent.initial.state_dict()), await agent.state())


async def test_a_restore_that_lacks_a_block_is_refused_and_one_that_does_not_follows(tmp_path):
    async with standing(tmp_path) as agent:
        await replicate(agent, [1])
        await agent.join()
        with pytest.raises(NotStoredError, match=r"blocks \[1, 2, 3\] of checkpoint 0-3 .* are not all here"):
            await agent.restore(*NAME, agent.own, WITHOUT_NEAR)
        await agent.restore(*NAME, agent.own, BEFORE)


async def test_a_replica_that_is_damaged_is_not_restored(tmp_path):
    async with standing(tmp_path) as agent:
        await replicate(agent)
        (replica,) = tmp_path.glob("far/*/*/*.block-2.safetensors")
        replica.write_bytes(b"other bytes")
        await agent.join()
        with pytest.raises(NotStoredError, match="or are damaged"):
            await agent.restore(*NAME, agent.own, WITHOUT_NEAR)


async def got(agent, ticket, block, checkpoint):
    async with TrainerClient(TrainerAddressConfig(address=agent.trainers["near"].address), LinkConfig()) as client:
        return await client.download_block(
            agent.sessions["near"], block, 1 << 20, weights_only=False, ticket=ticket, checkpoint=checkpoint
        )


async def test_a_ticket_gives_blocks_of_its_checkpoint_or_of_memory_alone(tmp_path):
    async with standing(tmp_path) as agent:
        of_memory, of_disk = await agent.offer("near", "far", [1]), await agent.offer("near", "far", [1], NAME)
        now, then = await got(agent, of_memory, 1, None), await got(agent, of_disk, 1, NAME)
        assert bytes(now) != bytes(then)
        for ticket, block, checkpoint in [
            (of_memory, 1, NAME),
            (of_disk, 1, None),
            (of_disk, 2, NAME),
            (of_disk, 1, CheckpointName(0, 2)),
        ]:
            with pytest.raises(AccessError, match="gives no block"):
                await got(agent, ticket, block, checkpoint)


async def test_a_ticket_for_a_checkpoint_outlives_a_change_of_placement_and_no_other_agent(tmp_path):
    async with standing(tmp_path) as agent:
        ticket = await agent.offer("near", "far", [1], NAME)
        await agent.commit(chain((1, 2), (2, 4), version=1), TAKEN_AT + 1)
        await got(agent, ticket, 1, NAME)
        await agent.join()
        with pytest.raises(AccessError, match="gives no block"):
            await got(agent, ticket, 1, NAME)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("blocks", "checkpoint", "error", "says"),
    [
        ([1], (0, 2), NotStoredError, "checkpoint 0-2 is not at worker 'near'"),
        ([1], (0, 2**64 - 1), RefusedError, "there can be no checkpoint 0-18446744073709551615"),
        ([1, 1], NAME, RefusedError, "each once"),
        ([], NAME, RefusedError, "one or more"),
    ],
)
async def test_what_is_in_no_checkpoint_is_not_offered(blocks, checkpoint, error, says, tmp_path):
    async with standing(tmp_path) as agent:
        with pytest.raises(error, match=says):
            await agent.offer("near", "far", blocks, checkpoint)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("block", "checkpoint", "weights_only", "error", "says"),
    [
        (1, (2, TAKEN_AT), False, RefusedError, "there can be no checkpoint 2-3"),
        (1, (0, 10**19), False, RefusedError, "there can be no checkpoint"),
        (1, NAME, True, RefusedError, "is whole"),
        (4, NAME, False, RefusedError, "there is no block 4"),
        (3, NAME, False, NotStoredError, "block 3 of checkpoint 0-3 is not at 'near'"),
        (1, (0, 2), False, RefusedError, "gives no block"),
    ],
)
async def test_what_can_be_no_replica_is_refused_and_leaves_nothing(
    block, checkpoint, weights_only, error, says, tmp_path
):
    async with standing(tmp_path) as agent:
        ticket = await agent.offer("near", "far", [1, 3], NAME)
        with pytest.raises(error, match=says):
            await agent.fetch("far", "near", ticket, [block], checkpoint=checkpoint, weights_only=weights_only)
        assert not replicas_in(tmp_path)


async def test_only_the_agent_that_joined_last_has_replicas_written(tmp_path):
    async with standing(tmp_path) as agent:
        await agent.join()
        ticket = await agent.offer("near", "far", [1], NAME)
        agent.term -= 1
        with pytest.raises(FencedError):
            await agent.fetch("far", "near", ticket, [1], checkpoint=NAME)
        assert not replicas_in(tmp_path)
        agent.term += 1


async def test_replicas_count_in_what_a_subject_may_keep(tmp_path):
    async with standing(tmp_path) as agent:
        stored = sum(path.stat().st_size for path in (tmp_path / "far").rglob("*") if path.is_file())
    async with standing(tmp_path / "again", f"checkpoints.max_bytes_per_subject={stored + 100}") as agent:
        ticket = await agent.offer("near", "far", [1], NAME)
        with pytest.raises(BusyError, match=r"cannot keep block 1 of checkpoint 0-3: .*max_bytes_per_subject"):
            await agent.fetch("far", "near", ticket, [1], checkpoint=NAME)
        assert not replicas_in(tmp_path / "again")


@asynccontextmanager
async def sending(state):
    """The address of a trainer that sends these tensors for any block."""
    server = grpc.aio.server()

    async def download(request, _context):
        data = torch.frombuffer(bytearray(state_file.serialize(state)), dtype=torch.uint8)
        for frame, payload in chunks(to_wire(codec_by_name("raw").encode(data), block_key(request.block), 0), 1 << 20):
            yield Packet(pb.DownloadBlockResponse(frame=frame), payload)

    handler = grpc.unary_stream_rpc_method_handler(
        download, request_deserializer=pb.DownloadBlockRequest.FromString, response_serializer=serialize
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("isthmus.v1.TrainerService", {"DownloadBlock": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_tensors_that_are_not_the_blocks_are_not_written(tmp_path):
    async with standing(tmp_path) as agent, sending({"parameter/stranger": torch.zeros(3)}) as address:
        with pytest.raises(ProtocolError, match=r"state of block '1': .* is missing"):
            await agent.fetch("far", "near", "any", [1], address=address, checkpoint=NAME)
        assert not replicas_in(tmp_path)
