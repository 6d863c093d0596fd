"""Limits on one caller, and the refusals at them: both sides of every limit, over a real socket."""

import asyncio
import json
import threading

import grpc
import pytest

from cloud_trainer.rpc import session_calls
from cloud_trainer.sessions.memory import MOST_COPYING
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import BusyError, ExitCode, RefusedError
from shared.registry import OptimizerConfig
from shared.training import block_state, state_file
from shared.training.step_seconds import StepSeconds
from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from tests.support.peers.strangers import path_of
from tests.support.running import running_trainer
from tests.support.wire import BATCH, CUT, FEATURES, RawPeer, open_request, opening, placed

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode


def client(server):
    return TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig())


async def test_too_many_calls_are_told_when_to_come_again():
    async with running_trainer("server.max_calls_per_second=0.01") as server, client(server) as edge:
        await edge.close_session(
            "nobody", pb.Fence(), resumable=False
        )  # a burst of ten seconds' worth is less than one call, and so one call
        with pytest.raises(BusyError, match=r"too many calls .*\(max_calls_per_second\)") as busy:
            await edge.close_session("nobody", pb.Fence(), resumable=False)
        assert 90 < busy.value.retry_after_seconds <= 100
        assert busy.value.exit_code is ExitCode.BUSY
        assert isinstance(busy.value, RefusedError)


async def test_too_many_sessions_are_told_when_to_come_again():
    async with (
        running_trainer("server.max_sessions=1") as server,
        client(server) as edge,
        RawPeer(server.address) as peer,
    ):
        session = await peer.open()
        with pytest.raises(BusyError, match=r"1 sessions are open.*\(server.max_sessions\)") as busy:
            await edge.open_session(open_request())
        assert busy.value.retry_after_seconds > 0
        await peer.close_session(session)
        await edge.open_session(open_request())


async def test_a_call_that_ends_gives_its_place_back():
    async with (
        running_trainer("server.max_calls_at_once=2") as server,
        RawPeer(server.address) as peer,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        held = []
        for _ in range(2):  # the second finds one place left: for the calls that open its session, then for its own
            session = await peer.open_and_join()
            call = channel.stream_stream(path_of("Link"))()
            await call.write(opening(session))
            await call.read()  # that it was begun says nothing of what has arrived; an answer does
            held.append(call)
        third = await peer.unary("CloseSession", b"")
        assert third.code is Code.RESOURCE_EXHAUSTED
        assert third.details == "2 calls of this caller are under way already (max_calls_at_once)"
        for call in held:
            call.cancel()
        async with asyncio.timeout(60):
            while (await peer.unary("CloseSession", b"")).code is not Code.OK:
                pass


@pytest.mark.parametrize("kwargs", [{"hidden": 10**6}, {"hidden": 10**5, "depth": 40}])
async def test_a_model_that_is_too_large_is_refused_before_it_is_there(kwargs):
    async with running_trainer() as server, client(server) as edge, RawPeer(server.address) as peer:
        model = pb.Model(factory="shared.model.zoo:mlp", kwargs_json=json.dumps({"depth": 4, **kwargs}))
        with pytest.raises(
            RefusedError, match=r"more than \d+ bytes of memory \(server.max_session_bytes\)"
        ) as refused:
            await edge.open_session(open_request(model=model))
        assert not isinstance(refused.value, BusyError), "waiting does not make it smaller"
        await peer.close_session(await peer.open())


async def test_a_session_takes_what_it_may_and_no_byte_more():
    async def opens(limit_bytes):
        async with (
            running_trainer(f"server.max_session_bytes={limit_bytes}") as server,
            RawPeer(server.address) as peer,
        ):
            return (await peer.unary("OpenSession", open_request().SerializeToString())).code

    low, high = 1, 1 << 30  # the first is refused, the last is not
    assert await opens(low) is Code.RESOURCE_EXHAUSTED
    assert await opens(high) is Code.OK
    weights = 4 * (64 * 64 + 64) * 2 + 4 * (64 * 10 + 10)
    assert await opens(weights) is Code.RESOURCE_EXHAUSTED, "weights alone are not all"
    assert await opens(20 * weights) is Code.OK


async def begin_more_than_may_be(method, begun, server, most):
    """Calls that begin and never end: the last of them are refused, `most` go on until they are cancelled."""
    more = 5
    async with grpc.aio.insecure_channel(server.address) as channel, asyncio.timeout(60):
        calls = [channel.stream_unary(path_of(method))() for _ in range(most + more)]
        for call in calls:
            await call.write(begun)
        ends = asyncio.as_completed([call.code() for call in calls])
        assert {await next(ends) for _ in range(more)} == {Code.RESOURCE_EXHAUSTED}
        under_way = [call for call in calls if not call.done()]
        assert len(under_way) == most
        for call in under_way:
            call.cancel()
        for end in ends:
            await end


@pytest.mark.parametrize(
    ("role", "learns"), [(Role.ROLE_BLOCK, []), (Role.ROLE_FROZEN, ["2.bias"])], ids=["states", "frozen weights"]
)
async def test_uploads_that_never_end_hold_no_more_than_twice_the_model(role, learns):
    request = open_request()
    request.recipe_json = json.dumps({**json.loads(request.recipe_json), "learns": learns})
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open(recipe_json=request.recipe_json)
        blocks = server.service.sessions.built[0].blocks.held.chain.blocks
        sizes = [block_state.max_serialized_bytes(block, OptimizerConfig()) for block in blocks]
        frozen = [block_state.max_frozen_bytes(block) if learns else 0 for block in blocks]
        size, of_all = (frozen if learns else sizes)[1], sum(sizes) + sum(frozen)
        room = 2 * of_all // size
        header = TensorHeader(codec="raw", dtype=7, shape=[size], strides=[1], encoded_bytes=size)
        frame = Frame(block=1, role=role, tensor=header)
        begun = serialize(Packet(pb.UploadBlockRequest(session_id=session, frame=frame), b"first"))
        await begin_more_than_may_be("UploadBlock", begun, server, most=room)
        while (end := await peer.streamed("UploadBlock", [begun])).code is Code.RESOURCE_EXHAUSTED:
            pass
        assert end.details == "the stream ended before the block was whole", "there is room again"
        await peer.close_session(session)


@pytest.mark.slow
async def test_what_was_refused_at_opening_is_refused_as_a_change_too():
    async def opened(peer, **changes):
        return (await peer.unary("OpenSession", open_request(**changes).SerializeToString())).code

    one_batch_bytes = 2 * 2 * BATCH * FEATURES * 4  # feature and gradient, each as it travels and decoded
    low, high = 1, 1 << 30  # what a session without batches that wait takes lies between
    while high - low > 1:
        limit = (low + high) // 2
        async with running_trainer(f"server.max_session_bytes={limit}") as server, RawPeer(server.address) as peer:
            low, high = (low, limit) if await opened(peer) is Code.OK else (limit, high)
    limit = high + 10 * one_batch_bytes
    async with running_trainer(f"server.max_session_bytes={limit}") as server, RawPeer(server.address) as peer:
        assert await opened(peer, staleness=64) is Code.RESOURCE_EXHAUSTED
        end = await peer.unary("OpenSession", open_request(staleness=10).SerializeToString())
        assert pb.OpenSessionResponse.FromString(end.responses[0]).max_staleness == 10
        session = pb.OpenSessionResponse.FromString(end.responses[0]).session_id
        await peer.join(session)
        change = pb.CommitPlacementRequest(
            session_id=session, fence=pb.Fence(session_term=1), placement=placed(version=1, staleness=11)
        )
        refused = await peer.unary("CommitPlacement", change.SerializeToString())
        assert refused.code is Code.RESOURCE_EXHAUSTED, refused
        assert "(server.max_session_bytes)" in refused.details
        change.placement.CopyFrom(placed(version=1, staleness=10))
        assert (await peer.unary("CommitPlacement", change.SerializeToString())).code is Code.OK


async def test_a_session_takes_part_in_one_evaluation_at_one_time():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open_and_join()
        async with peer.evaluating(session, 1):
            assert (await peer.linked(session, [], evaluation=1)).code is Code.OK
            async with peer.evaluating(session, 2):
                ended = await peer.linked(session, [], evaluation=1)
                assert (ended.code, ended.details) == (
                    Code.FAILED_PRECONDITION,
                    f"evaluation 1 of session {session} is not under way",
                )
                assert (await peer.linked(session, [], evaluation=2)).code is Code.OK
        await peer.close_session(session)


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("DownloadBlock", lambda session: pb.DownloadBlockRequest(session_id=session, block=CUT)),
        (
            "MeasureStage",
            lambda session: pb.MeasureStageRequest(session_id=session, first=CUT, stop=CUT + 1, repeats=1),
        ),
    ],
)
async def test_a_session_has_its_blocks_copied_by_no_more_than_a_few_calls_at_one_time(method, request_of, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(state_file, "serialize", lambda _tensors: go_on.wait(60) and b"")
    monkeypatch.setattr(
        session_calls, "stage_step", lambda *_, **__: lambda: go_on.wait(60) and StepSeconds(0.0, 0.0, 0.0)
    )
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        calls = [
            asyncio.ensure_future(peer.unary(method, request_of(session).SerializeToString()))
            for _ in range(MOST_COPYING + 3)
        ]
        try:
            async with asyncio.timeout(60):
                ends = asyncio.as_completed(calls)
                assert {(await next(ends)).code for _ in range(3)} == {Code.RESOURCE_EXHAUSTED}
            assert sum(not call.done() for call in calls) == MOST_COPYING
        finally:
            go_on.set()
            await asyncio.gather(*calls)
        again = await peer.unary(method, request_of(session).SerializeToString())
        assert again.code is not Code.RESOURCE_EXHAUSTED, "they have given their places back"
