"""Refusals of a trainer to an agent with a placement: each in one sentence, and nothing is half-done after it."""

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import grpc
import pytest
import torch

from shared.client.link_call import StreamListener
from shared.codec import codec_by_name
from shared.errors import (
    FencedError,
    IsthmusError,
    NotStoredError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    UnreachableError,
)
from shared.placement import AGENT, Placement, Rows, Source, Tile, two_workers
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import TensorKey, chunks
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkOpening, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.peers.strangers import path_of
from tests.support.placed import CLASSES, batch_of
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent, message_of
from tests.support.wire import RawPeer

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS, STEPS = 8, 4, 2
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, BATCH) for step in range(2 * STEPS)]
CUT = two_workers(AGENT, "gpu", 2, BLOCKS, BATCH)
LATER = Placement(
    1,
    BLOCKS,
    BATCH,
    (AGENT, "gpu"),
    (Tile(AGENT, 0, 1, WHOLE), Tile("gpu", 1, 3, WHOLE), Tile(AGENT, 3, BLOCKS, WHOLE)),
    (Source(AGENT, WHOLE),),
)
LABELS_STAY = replace(LATER, version=0)
Code = grpc.StatusCode


@asynccontextmanager
async def standing(*flags, dialled=True, placement=CUT):
    """An agent that has trained two steps; after the test it must train on as if nothing had been asked."""
    async with running_trainer(*flags) as server, PlacedAgent(placement, {"gpu": server.address}) as agent:
        await agent.begin()
        await agent.train(0, BATCHES[:STEPS])
        if not dialled:
            await agent.end_links()
        yield agent, server
        if not dialled:
            await agent.dial()
        await agent.train(STEPS, BATCHES[STEPS:])
        plain = PlainTiles(list(agent.initial), placement, agent.recipe)
        for step, batch in enumerate(BATCHES):
            plain.step(step, *batch)
        assert_same_bits(dict(agent.initial.state_dict()), await agent.state())


def opening(agent, **changes):
    told = {
        "protocol_version": PROTOCOL_VERSION,
        "session_id": agent.sessions["gpu"],
        "session_term": agent.term,
        "worker": AGENT,
    }
    return LinkOpening(**(told | changes))


async def dialled(agent, **changes):
    listener = StreamListener(lambda *_: None, lambda: None, lambda *_: None)
    return await agent.trainers["gpu"].link(opening(agent, **changes), listener)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"session_term": 2}, FencedError, "was attached with term 1; a call of term 2 came"),
        ({"session_term": 0}, FencedError, "a call of term 0 came"),
        ({"session_id": "0" * 32}, SessionLostError, "there is no session"),
        ({"worker": "near"}, ProtocolError, "'near' does not dial 'gpu' under placement 0"),
        ({"worker": "gpu"}, ProtocolError, "'gpu' does not dial 'gpu'"),
        ({"evaluation": 1}, ProtocolError, "evaluation 1 of session .* is not under way"),
        ({"protocol_version": PROTOCOL_VERSION + 1}, ProtocolError, "the caller speaks protocol version"),
    ],
)
async def test_a_link_that_is_not_there_is_not_opened(changes, kind, says):
    async with standing() as (agent, _):
        with pytest.raises(kind, match=says):
            await dialled(agent, **changes)


async def test_a_link_of_a_session_that_nobody_has_joined_is_not_opened():
    async with running_trainer() as server, PlacedAgent(CUT, {"gpu": server.address}) as agent:
        await agent.open()
        for term in (0, 1):
            with pytest.raises(FencedError):
                await dialled(agent, session_term=term)


async def test_a_link_begins_with_its_opening_and_with_a_position():
    async with standing() as (agent, server), RawPeer(server.address) as peer:
        first = await peer.streamed("Link", [])
        assert "ended before it said what it is" in first.details
        for message in (LinkMessage(), LinkMessage(opening=opening(agent), position=LinkPosition())):
            end = await ended(server.address, [message])
            assert end is Code.INVALID_ARGUMENT
        wrong = LinkPosition(placement_version=7)
        opened = [LinkMessage(opening=opening(agent)), LinkMessage(position=wrong)]
        assert await ended(server.address, opened) is Code.FAILED_PRECONDITION
        await agent.lose("gpu")  # each of these that was opened has taken its place


async def ended(address, messages):
    """Return the end of a link on which all of this is said."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(path_of("Link"))()
        for message in messages:
            await call.write(serialize(Packet(message)))
        await call.done_writing()
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()


@pytest.mark.parametrize(
    ("placement", "step", "says"),
    [
        (replace(CUT, version=1), STEPS + 1, f"at 0-{STEPS + 1} cannot follow placement 0 at 0-{STEPS}"),
        (replace(CUT, staleness=1), STEPS, "placement 0 at 0-2 cannot follow placement 0"),
        (LATER, STEPS, r"and without blocks \[1\]"),
    ],
)
async def test_a_placement_that_cannot_follow_leaves_the_one_in_force(placement, step, says):
    async with standing(dialled=False) as (agent, _):
        with pytest.raises(ProtocolError, match=says):
            await agent.commit_at("gpu", placement, step)


async def test_a_placement_that_cannot_be_leaves_the_one_in_force():
    async with standing(dialled=False) as (agent, _):
        with pytest.raises(RefusedError, match=r"server\.accept_inputs"):
            await agent.commit_at("gpu", replace(CUT, version=1, tiles=(Tile("gpu", 0, 4, WHOLE),)), STEPS)
        with pytest.raises(RefusedError, match=r"server\.max_staleness"):
            await agent.commit_at("gpu", replace(CUT, version=1, staleness=65), STEPS)


async def test_an_agent_that_has_not_joined_last_can_ask_for_nothing():
    async with standing(dialled=False) as (agent, _):
        client, session, old = agent.trainers["gpu"], agent.sessions["gpu"], pb.Fence(session_term=agent.term - 1)
        name, placed = pb.CheckpointName(step=STEPS), message_of(replace(CUT, version=1))
        with pytest.raises(FencedError):
            await client.join_session(session, agent.term)
        with pytest.raises(FencedError):
            await client.commit_placement(
                pb.CommitPlacementRequest(session_id=session, fence=old, next_step=STEPS, placement=placed)
            )
        with pytest.raises(FencedError):
            await client.restore_worker(
                pb.RestoreWorkerRequest(session_id=session, fence=old, checkpoint=name, placement=placed)
            )
        with pytest.raises(FencedError):
            async for _ in client.checkpoint_worker(
                pb.CheckpointWorkerRequest(session_id=session, fence=old, name=name)
            ):
                pass
        with pytest.raises(FencedError):
            async with client.evaluation(pb.JoinEvaluationRequest(session_id=session, fence=old, evaluation=1)):
                pass
        with pytest.raises(FencedError):
            await client.dial_peers(pb.DialPeersRequest(session_id=session, fence=old))
        with pytest.raises(FencedError):
            await client.leave_group(pb.LeaveGroupRequest(session_id=session, fence=old, last_step=STEPS))
        with pytest.raises(FencedError):
            await client.join_group(pb.JoinGroupRequest(session_id=session, fence=old, life=1, first_step=STEPS))
        with pytest.raises(FencedError):
            await client.close_session(session, old, resumable=False)


async def test_a_session_in_no_group_leaves_and_joins_none():
    async with standing(dialled=False) as (agent, _):
        request = pb.LeaveGroupRequest(session_id=agent.sessions["gpu"], fence=agent.fence, last_step=STEPS)
        with pytest.raises(RefusedError, match="is in no group that it could leave"):
            await agent.trainers["gpu"].leave_group(request)
        join = pb.JoinGroupRequest(session_id=agent.sessions["gpu"], fence=agent.fence, life=1, first_step=STEPS)
        with pytest.raises(RefusedError, match="is in no group that it could join"):
            await agent.trainers["gpu"].join_group(join)


async def test_checkpoints_of_another_state_are_neither_taken_nor_restored(tmp_path):
    async with standing(f"checkpoints.location={tmp_path}", dialled=False) as (agent, _):
        client, session = agent.trainers["gpu"], agent.sessions["gpu"]
        for lineage, step in ((0, STEPS + 1), (1, STEPS)):
            name = pb.CheckpointName(lineage=lineage, step=step)
            with pytest.raises(ProtocolError, match=f"'gpu' is at 0-{STEPS}, with no step under way"):
                async for _ in client.checkpoint_worker(
                    pb.CheckpointWorkerRequest(session_id=session, fence=agent.fence, name=name)
                ):
                    pass
        with pytest.raises(NotStoredError, match="are not all here, or are damaged"):
            await agent.restore(3, STEPS, b"", CUT)
        assert (await agent.join())["gpu"].whole


async def test_a_second_evaluation_ends_the_first_and_numbers_rise():
    async with standing() as (agent, _):
        client, session = agent.trainers["gpu"], agent.sessions["gpu"]

        def asked(number):
            return client.evaluation(pb.JoinEvaluationRequest(session_id=session, fence=agent.fence, evaluation=number))

        async with asked(2):
            with pytest.raises(ProtocolError, match="the last one was 2, and numbers rise"):
                async with asked(2):
                    pass
            async with asked(3):
                with pytest.raises(ProtocolError, match=r"evaluation 2 of session .* is not under way"):
                    await dialled(agent, evaluation=2)
                call, _ = await dialled(agent, evaluation=3)
                call.cancel()
        agent.evaluations = 3
        await agent.evaluate(BATCHES)


async def test_a_block_that_it_updates_is_not_replaced_once_it_trains():
    async with standing() as (agent, _):
        state = await agent.download("gpu", 2)
        with pytest.raises(ProtocolError, match="only blocks can be brought that 'gpu' does not update"):
            await agent.upload("gpu", 2, state)
        with pytest.raises(RefusedError, match="worker 'gpu' does not hold block 0"):
            await agent.download("gpu", 0)


async def test_measuring_leaves_no_trace_and_ends_where_training_begins():
    async with running_trainer() as server, PlacedAgent(CUT, {"gpu": server.address}) as agent:
        await agent.open()
        gpu, session = agent.trainers["gpu"], agent.sessions["gpu"]
        before = await agent.download("gpu", 2)
        for first, stop, samples in ((2, 3, None), (0, 1, 1), (0, 4, BATCH)):
            steps = await gpu.measure_stage(session, first, stop, 3, samples)
            assert len(steps) == 3
            assert all(step.forward > 0 and step.backward > 0 and step.update > 0 for step in steps)
        after = await agent.download("gpu", 2)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        for first, stop in ((2, 2), (3, 2), (0, 99)):
            with pytest.raises(RefusedError, match="out of range"):
                await gpu.measure_stage(session, first, stop, 1)
        for samples in (0, BATCH + 1):
            with pytest.raises(RefusedError, match=f"of {samples} samples were asked for; 1 to {BATCH} can be"):
                await gpu.measure_stage(session, 2, 3, 1, samples)
        await agent.join()
        with pytest.raises(ProtocolError, match="trains; blocks are measured before that"):
            await gpu.measure_stage(session, 2, 3, 1)


async def test_a_trainer_that_is_about_to_stop_opens_no_link_and_no_session():
    async with running_trainer() as server, PlacedAgent(CUT, {"gpu": server.address}) as agent:
        await agent.open()
        await agent.join()
        await server.service.stop(0)
        with pytest.raises(UnreachableError, match="about to stop"):
            await agent.dial()
        with pytest.raises(UnreachableError, match="about to stop"):
            await agent.open()


async def test_an_operator_that_closes_a_session_ends_its_links_and_what_it_computes():
    async with running_trainer() as server, PlacedAgent(CUT, {"gpu": server.address}) as agent:
        await agent.begin()
        await agent.train(0, BATCHES[:STEPS])
        (session,) = server.service.sessions.built
        await server.service.end_session(agent.sessions["gpu"], resumable=False)
        with pytest.raises(IsthmusError, match="was closed while it trained"):
            await agent.train(STEPS, BATCHES[STEPS:])
        assert session.executor_of(0).failure.cancelled()
        with pytest.raises(SessionLostError):
            await agent.join()


async def test_labels_that_the_loss_cannot_take_end_the_link_before_memory_is_taken():
    async with running_trainer() as server, PlacedAgent(CUT, {"gpu": server.address}) as agent:
        await agent.begin()
        inputs, _ = BATCHES[0]
        with pytest.raises(RefusedError, match="labels"):
            await agent.train(0, [(inputs, torch.zeros(BATCH, 100_000))])


OUTPUTS = torch.zeros(BATCH, CLASSES)
TELL_LABELS = {
    "label": (Role.ROLE_LABEL, BATCHES[STEPS][1]),
    "feature": (Role.ROLE_FEATURE, OUTPUTS),
    "error gradient": (Role.ROLE_ERROR_GRADIENT, OUTPUTS),
}
"""A label, an output, and the error gradient of an output: each of these reveals the label."""


@pytest.mark.parametrize("evaluation", [0, 1], ids=["training", "evaluation"])
@pytest.mark.parametrize("what", TELL_LABELS)
async def test_where_labels_stay_whatever_tells_one_is_refused_and_nothing_is_half_done(what, evaluation):
    async with (
        standing(placement=LABELS_STAY) as (agent, server),
        RawPeer(server.address) as peer,
        AsyncExitStack() as stack,
    ):
        session, step, position = agent.sessions["gpu"], STEPS, agent.worker.executor.ends["gpu"].position
        if evaluation:
            await stack.enter_async_context(peer.evaluating(session, evaluation, agent.term))
            step, position = 0, LinkPosition(awaited=[Awaited(role=Role.ROLE_FEATURE, block=3)])
        role, tensor = TELL_LABELS[what]
        wired = to_wire(codec_by_name("raw").encode(tensor), TensorKey(step, role, BLOCKS), 0, BATCH)
        (frame, payload), *_ = chunks(wired, 1 << 20)
        end = await peer.linked(
            session,
            [serialize(Packet(LinkMessage(frames=[frame]), bytes(payload)))],
            term=agent.term,
            evaluation=evaluation,
            position=serialize(Packet(LinkMessage(position=position))),
        )
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == (
            f"the {what} of step {step} (block {BLOCKS}) came from 'edge', who has none to send under this placement"
        )
        assert (await agent.trainers["gpu"].get_session(session)).next_step == STEPS
        if not evaluation:
            await agent.lose("gpu")  # whose place the peer has taken


async def test_a_stranger_to_the_session_finds_nothing():
    async with standing() as (agent, server):
        with pytest.raises(SessionLostError):
            await agent.trainers["gpu"].join_session("f" * 32, 9)
        assert len(server.service.sessions) == 1
