"""The largest placements that a document can describe hold up neither health checks nor another session's steps."""

import asyncio
import gc
import json
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import heard_trainer_process, running_trainer
from tests.support.stand_ins.stepping import stepping
from tests.support.wire import TRAINER, RawPeer, joining, open_request

pytestmark = pytest.mark.slow

MODEL = pb.Model(factory="shared.model.zoo:mlp", kwargs_json="{}")
LONGEST_CHECK_SECONDS = 0.2
MOST_MEASUREMENTS = 3
"""Largest number of measurements for one document: other work on the machine makes steps longer, never shorter."""
MOST_TIMES = 3.0
"""Maximum ratio of a step of another session to its usual time."""
MOST_COMPUTING_SECONDS = 0.05
"""The processor time that one callback of the event loop may take: a few milliseconds on an idle machine."""
LEAST_STEPS = 100
"""Over which a step's time is taken."""
WORKERS = ["edge", TRAINER, *(f"t{number}" for number in range(14))]
BATCH = 64


def stretches(workers, shift=0):
    """The samples of a batch, divided among workers; the inner bounds moved."""
    each = BATCH // len(workers)
    bounds = [0, *(each * number + shift for number in range(1, len(workers))), BATCH]
    return [{"worker": worker, "samples": [bounds[at], bounds[at + 1]]} for at, worker in enumerate(workers)]


def placement(workers, tiles, owners, **more):
    document = {"schema": "isthmus.placement/v1", "workers": workers, "tiles": tiles, "owners": owners, **more}
    text = json.dumps(document, separators=(",", ":"))
    assert len(text) <= 64 * 1024, len(text)
    return text


def shared_by_all(blocks):
    """Sixteen workers share all blocks but the first, which is the device's; they own them by turns."""
    tiles = [{"worker": "edge", "blocks": [0, 1]}, *(one | {"blocks": [1, blocks]} for one in stretches(WORKERS))]
    return placement(WORKERS, tiles, {str(block): WORKERS[block % 16] for block in range(1, blocks)})


def owned_by_one(blocks):
    """The same; the trainer owns them all, so that everything goes to it."""
    tiles = [{"worker": "edge", "blocks": [0, 1]}, *(one | {"blocks": [1, blocks]} for one in stretches(WORKERS))]
    return placement(WORKERS, tiles, {str(block): TRAINER for block in range(1, blocks)})


def by_turns(blocks):
    """Two workers take turns, block by block."""
    tiles = [{"worker": WORKERS[block % 2], "blocks": [block, block + 1]} for block in range(blocks)]
    return placement(WORKERS[:2], tiles, {})


def woven(blocks):
    """Sixteen workers share each block on other samples than the one before."""
    tiles = [{"worker": "edge", "blocks": [0, 1]}]
    for block in range(1, blocks):
        turned = WORKERS[block % 16 :] + WORKERS[: block % 16]
        tiles += [one | {"blocks": [block, block + 1]} for one in stretches(turned, 2 * (block % 2))]
    return placement(WORKERS, tiles, {str(block): WORKERS[block % 16] for block in range(1, blocks)})


LARGEST = {
    "shared by all, 100 blocks": shared_by_all(100),
    "shared by all, 200 blocks": shared_by_all(200),
    "as much shared as may be": shared_by_all(274),
    "as much shared as may be, and owned by one": owned_by_one(274),
    "1,000 blocks by turns": by_turns(1000),
    "as much woven as a document holds": woven(50),
    "more shared than may be": shared_by_all(600),
}


def request(document):
    blocks = int(json.loads(document)["tiles"][-1]["blocks"][1])
    model = pb.Model(factory="shared.model.zoo:mlp", kwargs_json=json.dumps({"depth": blocks, "hidden": 8}))
    asked = open_request(model=model, block_names=[str(block) for block in range(blocks)])
    asked.inputs[0].shape[0] = BATCH
    asked.placement.document_json = document
    return asked


async def change(peer, session, document):
    """Have another version of the same placement come into force, which is judged as if it were new."""
    asked = pb.CommitPlacementRequest(
        session_id=session, fence=pb.Fence(session_term=1), placement=pb.Placement(version=1, document_json=document)
    )
    return await peer.unary("CommitPlacement", asked.SerializeToString())


async def evaluate(peer, session):
    """Have a session begin to evaluate."""
    async with peer.evaluating(session):
        pass


async def place_all(peer, document):
    """Everything that a peer can have done with a placement: open, join, evaluate, change, close. How opening ended."""
    opened = await peer.unary("OpenSession", request(document).SerializeToString())
    if opened.code is not grpc.StatusCode.OK:
        return opened
    session = pb.OpenSessionResponse.FromString(opened.responses[0]).session_id
    assert (await peer.unary("JoinSession", joining(session))).code is grpc.StatusCode.OK
    await evaluate(peer, session)
    changed = await change(peer, session, document)
    assert changed.code is grpc.StatusCode.OK, changed
    await peer.close_session(session)
    return opened


def checks_until(address, ended):
    """The longest health check meanwhile, made one after the other on a connection and a thread of their own."""
    longest = 0.0
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        health.Check(health_pb2.HealthCheckRequest())
        while not ended.done():
            started = time.perf_counter()
            health.Check(health_pb2.HealthCheckRequest())
            longest = max(longest, time.perf_counter() - started)
            time.sleep(0.002)  # what is measured must leave the trainer its processor
    return longest


async def usual(other, address):
    """The seconds of a step of another session beside the same health checks, and nothing else."""
    ended = asyncio.ensure_future(asyncio.sleep(1.0))
    checking = asyncio.ensure_future(asyncio.to_thread(checks_until, address, ended))
    pace = await other.until(ended, least=LEAST_STEPS)
    await checking
    return pace.step_seconds


@pytest.fixture
def longest_callback(monkeypatch):
    """Record the callback of this thread's event loop that took most processor time, garbage collections left out."""
    longest, collecting = [(0.0, "")], [0.0, 0.0]
    run = asyncio.Handle._run

    def note(phase, _info):
        collecting[0 if phase == "start" else 1] = time.thread_time() - (0.0 if phase == "start" else collecting[0])

    def noted(handle):
        started, collecting[1] = time.thread_time(), 0.0
        try:
            return run(handle)
        finally:
            longest.append((time.thread_time() - started - collecting[1], repr(handle)))
            longest[:] = [max(longest)]

    monkeypatch.setattr(asyncio.Handle, "_run", noted)
    gc.callbacks.append(note)
    yield longest
    gc.callbacks.remove(note)


@pytest.mark.parametrize("name", ["shared by all, 200 blocks", "as much shared as may be, and owned by one"])
async def test_the_event_loop_computes_nothing_that_grows_with_a_placement(name, longest_callback):
    async with running_trainer("compute.threads=1") as server, RawPeer(server.address) as peer:
        await place_all(peer, shared_by_all(4))  # what is done for the first time is loaded first
        longest_callback[:] = [(0.0, "")]
        opened = await place_all(peer, LARGEST[name])
        assert opened.code is grpc.StatusCode.OK, opened
    (seconds, what) = longest_callback[0]
    assert seconds < MOST_COMPUTING_SECONDS, f"{seconds:.3f} s of processor time in {what}"


async def measure(peer, other, address, document):
    """Measure an opening: its end, the longest health check meanwhile, and the ratio of the steps to their usual time."""
    before = await usual(other, address)
    ended = asyncio.ensure_future(place_all(peer, document))
    checking = asyncio.ensure_future(asyncio.to_thread(checks_until, address, ended))
    pace = await other.until(ended, least=LEAST_STEPS)
    longest, opened = await checking, await ended
    return opened, longest, pace.step_seconds / max(before, await usual(other, address))


def beyond(measured):
    """Compute the share by which a measurement exceeds its bounds."""
    longest, times = measured
    return max(longest / LONGEST_CHECK_SECONDS, times / MOST_TIMES)


@pytest.mark.full
async def test_no_placement_holds_up_a_health_check_or_another_session_s_steps():
    failures, worst_check, worst_times = [], (0.0, ""), (0.0, "")
    # Begun by Python: what a process that is forked has imported already is part of what is measured.
    with heard_trainer_process("compute.threads=1", begun_by_python=True) as (_, address, _said):
        async with RawPeer(address) as peer, stepping(peer, address, MODEL) as other:
            await other.during(1.0)
            for name, document in LARGEST.items():
                measured = []
                while len(measured) < MOST_MEASUREMENTS and all(beyond(one) > 1 for one in measured):
                    opened, longest, times = await measure(peer, other, address, document)
                    measured.append((longest, times))
                    print(f"{name}: {opened.code.name}, {longest:.3f} s, {times:.2f} times")
                    if name.startswith("more"):
                        assert opened.code is grpc.StatusCode.INVALID_ARGUMENT
                        assert "let fewer workers share blocks" in opened.details
                    else:
                        assert opened.code is grpc.StatusCode.OK, opened
                longest, times = min(measured, key=beyond)
                worst_check, worst_times = max(worst_check, (longest, name)), max(worst_times, (times, name))
                if not beyond((longest, times)) <= 1:
                    failures.append(f"{name}: a check took {longest:.3f} s; steps took {times:.1f} times as long")
    print(f"\nlongest check: {worst_check[0]:.3f} s ({worst_check[1]})")
    print(f"longest steps: {worst_times[0]:.2f} times the usual ({worst_times[1]})")
    assert not failures, "\n" + "\n".join(failures)
