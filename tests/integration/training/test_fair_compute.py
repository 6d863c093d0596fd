"""One thread computes for all sessions: no session's work keeps others from theirs, and none outlives its caller."""

import asyncio
import json
import signal

import grpc
import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.models import paced
from tests.support.peers.strangers import path_of
from tests.support.running import running_trainer, trainer_process
from tests.support.stand_ins.stepping import stepping
from tests.support.wire import RawPeer, open_request

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def model(name="paced", **kwargs):
    return pb.Model(factory=f"tests.support.models.paced:{name}", kwargs_json=json.dumps(kwargs))


async def test_steps_of_5_ms_keep_two_fifths_of_their_pace_beside_steps_of_half_a_second():
    with trainer_process("compute.threads=1") as (_, address):
        async with RawPeer(address) as peer, stepping(peer, address, model(seconds=0.005)) as quick:
            await quick.during(0.5)
            alone = await quick.during(1.0)
            async with stepping(peer, address, model(seconds=0.5)) as slow:
                slowly = asyncio.ensure_future(slow.during(5.0))
                beside = await quick.until(slowly)
            slow_steps = (await slowly).steps
    kept = alone.step_seconds / beside.step_seconds
    print(
        f"\n{alone.step_seconds * 1e3:.1f} ms a step alone, {beside.step_seconds * 1e3:.1f} beside: {kept:.2f} of its pace"
    )
    assert kept >= 0.4
    assert slow_steps >= 3, "nor does the slow one starve"


async def test_a_model_that_is_being_built_holds_up_nobodys_steps():
    with trainer_process("compute.threads=1") as (_, address):
        async with RawPeer(address) as peer, stepping(peer, address, model(seconds=0.005)) as quick:
            await quick.during(0.5)
            alone = await quick.during(1.0)
            request = open_request(model=model("slow_to_build", seconds=1.5))
            opening = asyncio.ensure_future(peer.unary("OpenSession", request.SerializeToString()))
            beside = await quick.until(opening)
            assert (await opening).code is grpc.StatusCode.OK
    print(f"\n{alone} alone, {beside} beside: {beside.step_seconds / alone.step_seconds:.2f} times as long")
    assert beside.step_seconds <= 2 * alone.step_seconds, "a step waits for no more than another of its own"


async def test_a_measurement_ends_with_its_caller():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open(model=model(seconds=0.05))
        async with grpc.aio.insecure_channel(server.address) as channel:
            request = pb.MeasureStageRequest(session_id=session, first=1, stop=3, repeats=1000)
            before = paced.CALLS
            call = channel.unary_unary(path_of("MeasureStage"))(request.SerializeToString())
            async with asyncio.timeout(60):
                while before + 2 > paced.CALLS:
                    await peer.next_step(session)
            call.cancel()
        async with asyncio.timeout(60):
            while (await peer.unary("MeasureStage", short(session))).code is not grpc.StatusCode.OK:
                pass
        counted = paced.CALLS
        await peer.unary("MeasureStage", short(session))
        assert counted + 2 == paced.CALLS, "one that is not counted and one that is, and none of the first caller's"


def short(session):
    return pb.MeasureStageRequest(session_id=session, first=1, stop=3, repeats=1).SerializeToString()


async def test_a_step_that_does_not_end_does_not_keep_the_trainer_from_ending():
    with trainer_process("compute.threads=1", "server.stop_seconds=0.5") as (process, address):
        async with RawPeer(address) as peer, stepping(peer, address, model(seconds=3600.0)) as endless:
            step = asyncio.ensure_future(endless.step())
            while await peer.next_step(endless.session) is None or not await peer.attached(endless.session):
                pass
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
            step.cancel()
