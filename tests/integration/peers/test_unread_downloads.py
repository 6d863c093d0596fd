"""Downloads that are not read take no more memory of a trainer than it gives to one session."""

import asyncio
import json
from pathlib import Path

import grpc

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.strangers import path_of
from tests.support.running import trainer_process
from tests.support.wire import BATCH, RawPeer

LIMIT_BYTES = 420 * 1000 * 1000
BLOCK_BYTES = 4 * 4096 * 4096
CALLS = 8


def peak_bytes(process):
    """The most that was resident so far."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_unread_downloads_take_what_one_session_may_have_and_the_others_are_told_of_the_room():
    model = pb.Model(factory="shared.model.zoo:mlp", kwargs_json=json.dumps({"hidden": 4096}))
    with trainer_process("compute.threads=1", f"server.max_session_bytes={LIMIT_BYTES}") as (process, address):
        async with RawPeer(address) as peer, grpc.aio.insecure_channel(address) as channel, asyncio.timeout(60):
            await peer.close_session(await peer.open())  # what is done for the first time takes memory that is kept
            before = peak_bytes(process)
            session = await peer.open_and_join(model=model)
            request = pb.DownloadBlockRequest(session_id=session, block=1).SerializeToString()
            calls = [channel.unary_stream(path_of("DownloadBlock"))(request) for _ in range(CALLS)]
            begun = [asyncio.ensure_future(call.read()) for call in calls]  # the first chunk, and no more
            outcomes = await asyncio.gather(*begun, return_exceptions=True)
            refused = [call for call, outcome in zip(calls, outcomes, strict=True) if isinstance(outcome, Exception)]
            assert 1 <= len(refused) < CALLS, "one at least goes on"
            for call in refused:
                assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "bytes of blocks are to be sent or taken" in (details := await call.details())
                assert "the session has room for" in details
            assert peak_bytes(process) - before < LIMIT_BYTES
            for call in calls:
                call.cancel()
            whole = await peer.unary("DownloadBlock", request)
            while whole.code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # until the trainer has noticed that they are gone
                whole = await peer.unary("DownloadBlock", request)
            assert whole.code is grpc.StatusCode.OK
            assert sum(map(len, whole.responses)) > BLOCK_BYTES
            assert await peer.next_step(session) == 0, f"a session of batches of {BATCH} goes on"
