"""A claim of a peer costs the trainer little memory and other sessions little time, whatever it is."""

import asyncio
from collections import deque
from pathlib import Path

import grpc
import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.claims import CLAIMS
from tests.support.peers.strangers import METHODS, path_of
from tests.support.running import trainer_process
from tests.support.stand_ins.stepping import stepping
from tests.support.wire import BLOCKS, SERVICE, RawPeer

pytestmark = pytest.mark.slow

MOST_BYTES = 64 * 1024 * 1024
MOST_TIMES = 3.0
"""Maximum ratio of a step of another session to its usual time."""
REPEATS = 5
LEAST_STEPS = 100
"""Over which a step's time is taken, beside the claims and beside as many harmless calls."""
NEIGHBOURS = 10
"""Latest times beside harmless calls of which the longest is usual: other programs make steps longer, too, for a while."""
MODEL = pb.Model(factory="shared.model.zoo:mlp", kwargs_json="{}")


def resident(process, figure):
    """VmRSS, or VmHWM, which is its peak since `forget_peak`, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(figure))


def forget_peak(process):
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def make(address, method, calls):
    """Calls one after the other, on a connection and a thread of their own; how they ended."""
    ends = []
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        for messages in calls:
            call = channel.stream_stream(path_of(method))(iter(messages), timeout=60)
            try:
                deque(call, maxlen=0)
            except grpc.RpcError as failure:
                ends.append(failure.code())
            else:
                ends.append(grpc.StatusCode.OK)
    return ends


async def seconds_beside(other, address, method, calls):
    """Return the mean time of a step of another session meanwhile, and the ends of the calls."""
    calling = asyncio.ensure_future(asyncio.to_thread(make, address, method, calls))
    pace = await other.until(calling, least=LEAST_STEPS)
    return pace.step_seconds, await calling


def test_every_call_of_the_trainer_has_its_worst_claims():
    calls = {method.rpartition("/")[2] for method in METHODS if method.startswith(f"/{SERVICE}/")}
    assert calls == {claim.method for claim in CLAIMS}


async def test_no_claim_takes_much_memory_or_much_of_anybodys_time():
    worst_bytes, worst_times, failures = (0, ""), (0.0, ""), []
    with trainer_process("compute.threads=1") as (process, address):
        async with RawPeer(address) as peer, stepping(peer, address, MODEL) as other:
            await other.during(1.0)
            harmless = [[pb.GetSessionRequest(session_id=other.session).SerializeToString()]] * REPEATS
            usual = deque([(await seconds_beside(other, address, "GetSession", harmless))[0]], maxlen=NEIGHBOURS)
            for claim in [CLAIMS[0], *CLAIMS]:  # what is done for the first time takes memory that is kept
                cut = {"cut": BLOCKS} if claim.without_blocks else {}
                sessions = [await peer.open_and_join(**cut) for _ in range(REPEATS)]
                calls = [claim.messages(session) for session in sessions]
                held_bytes = resident(process, "VmRSS")
                forget_peak(process)
                during, ends = await seconds_beside(other, address, claim.method, calls)
                taken_bytes = resident(process, "VmHWM") - held_bytes
                usual.append((await seconds_beside(other, address, "GetSession", harmless))[0])
                for session in sessions:
                    await peer.close_session(session)
                assert grpc.StatusCode.OK not in ends, claim.name
                times = during / max(usual)
                worst_bytes = max(worst_bytes, (taken_bytes, claim.name))
                worst_times = max(worst_times, (times, claim.name))
                if taken_bytes > MOST_BYTES or times > MOST_TIMES:
                    failures.append(
                        f"{claim.name}: {taken_bytes / 2**20:.1f} MiB; steps took {times:.1f} times as long"
                    )
    print(f"\nmost memory: {worst_bytes[0] / 2**20:.1f} MiB ({worst_bytes[1]})")
    print(f"longest steps: {worst_times[0]:.2f} times the usual ({worst_times[1]}); {len(CLAIMS)} claims")
    assert not failures, "\n" + "\n".join(failures)
