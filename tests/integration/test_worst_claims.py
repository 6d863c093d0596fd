"""Whatever a peer claims, it costs the trainer little memory and other sessions little time."""

import asyncio
import os
from collections import deque
from pathlib import Path

import grpc
import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.claims import CLAIMS
from tests.support.running import trainer_process
from tests.support.stepping import stepping
from tests.support.strangers import METHODS, path_of
from tests.support.wire import SERVICE, RawPeer

MOST_BYTES = 64 * 1024 * 1024
MOST_TIMES = 3.0
"""That a step of another session may take, of its usual time."""
REPEATS = 5
LEAST_STEPS = 100
"""Over which a step's time is taken, beside the claims and beside as many harmless calls."""
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


def computed_seconds(process):
    """What the trainer has used of the processors so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cost_beside(other, process, address, method, calls):
    """Of a step of another session meanwhile: its time, and what the trainer computes for each; and how the calls ended.

    The time is a median, which what else this machine does moves little. What stops the trainer for once and then no more is
    in what it computes.
    """
    before = computed_seconds(process)
    calling = asyncio.ensure_future(asyncio.to_thread(make, address, method, calls))
    pace = await other.until(calling, least=LEAST_STEPS)
    return (pace.median_seconds, (computed_seconds(process) - before) / pace.steps), await calling


def test_every_call_of_the_trainer_has_its_worst_claims():
    calls = {method.rpartition("/")[2] for method in METHODS if method.startswith(f"/{SERVICE}/")}
    assert calls == {claim.method for claim in CLAIMS}


@pytest.mark.slow
async def test_no_claim_takes_much_memory_or_much_of_anybodys_time():
    worst_bytes, worst_times, failures = (0, ""), (0.0, ""), []
    with trainer_process("compute.threads=1") as (process, address):
        async with RawPeer(address) as peer, stepping(peer, address, MODEL) as other:
            await other.during(1.0)
            harmless = [[pb.GetSessionRequest(session_id=other.session).SerializeToString()]] * REPEATS
            for claim in [CLAIMS[0], *CLAIMS]:  # what is done for the first time takes memory that is kept
                sessions = [await peer.open() for _ in range(REPEATS)]
                calls = [claim.messages(session) for session in sessions]
                before, _ = await cost_beside(other, process, address, "GetSession", harmless)
                held_bytes = resident(process, "VmRSS")
                forget_peak(process)
                during, ends = await cost_beside(other, process, address, claim.method, calls)
                taken_bytes = resident(process, "VmHWM") - held_bytes
                after, _ = await cost_beside(other, process, address, "GetSession", harmless)
                for session in sessions:
                    await peer.close_session(session)
                assert grpc.StatusCode.OK not in ends, claim.name
                ratios = [now / max(usual) for now, *usual in zip(during, before, after, strict=True)]
                times = max(ratios)
                worst_bytes = max(worst_bytes, (taken_bytes, claim.name))
                worst_times = max(worst_times, (times, claim.name))
                if taken_bytes > MOST_BYTES or times > MOST_TIMES:
                    cost = f"{ratios[0]:.1f} times as long and computed {ratios[1]:.1f} times as much"
                    failures.append(f"{claim.name}: {taken_bytes / 2**20:.1f} MiB; steps took {cost}")
    print(f"\nmost memory: {worst_bytes[0] / 2**20:.1f} MiB ({worst_bytes[1]})")
    print(f"longest steps: {worst_times[0]:.2f} times the usual ({worst_times[1]}); {len(CLAIMS)} claims")
    assert not failures, "\n" + "\n".join(failures)
