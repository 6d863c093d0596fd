"""A step that an agent names costs nothing, however far it is: a trainer without blocks may be at it, and counts to none."""

import grpc
import pytest

from shared.bounds import MOST_STEPS, MOST_TERMS
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import trainer_process
from tests.support.wire import BLOCKS, RawPeer, joining, placed

FENCE = pb.Fence(session_term=1)
WITHOUT_BLOCKS = {"cut": BLOCKS}
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    flags = [f"checkpoints.location={folder / 'kept'}", f"checkpoints.step_log={folder / 'steps'}"]
    with trainer_process("compute.threads=1", *flags) as (_, address):
        yield address, folder / "steps"


def checkpoint(session, step, lineage=0):
    name = pb.CheckpointName(lineage=lineage, step=step)
    return "CheckpointWorker", pb.CheckpointWorkerRequest(session_id=session, fence=FENCE, name=name)


def prepare(session, step):
    placement = placed(version=1)
    return "CommitPlacement", pb.CommitPlacementRequest(
        session_id=session, fence=FENCE, next_step=step, placement=placement, prepare=True
    )


def restore(session, step):
    return "RestoreWorker", pb.RestoreWorkerRequest(
        session_id=session,
        fence=FENCE,
        checkpoint=pb.CheckpointName(step=step),
        placement=placed(version=1, **WITHOUT_BLOCKS),
    )


def begin_again(session, step):
    return "RestoreWorker", pb.RestoreWorkerRequest(
        session_id=session,
        fence=FENCE,
        beginning=pb.Beginning(step=step),
        placement=placed(version=1, **WITHOUT_BLOCKS),
    )


async def answered(peer, call):
    method, request = call
    return await peer.unary(method, request.SerializeToString())


@pytest.mark.parametrize("step", [MOST_STEPS + 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("call", [checkpoint, prepare, restore, begin_again])
async def test_a_step_that_no_run_can_have_is_refused_and_changes_nothing(trainer, call, step):
    address, logs = trainer
    async with RawPeer(address, timeout_seconds=20) as peer:
        session = await peer.open_and_join(**WITHOUT_BLOCKS)
        end = await answered(peer, call(session, step))
        assert end.code in REFUSED, end
        assert await peer.next_step(session) == 0
        assert (logs / f"{session}-trainer.steps").read_text() == ""
        await peer.close_session(session)


@pytest.mark.parametrize("step", [1, 10**9, MOST_STEPS])
async def test_a_trainer_without_blocks_is_at_the_step_that_the_others_reach_and_logs_one_line(trainer, step):
    address, logs = trainer
    async with RawPeer(address, timeout_seconds=20) as peer:
        session = await peer.open_and_join(**WITHOUT_BLOCKS)
        assert (await answered(peer, prepare(session, step))).code in (grpc.StatusCode.OK, *REFUSED)
        assert await peer.next_step(session) == 0, "to ask whether something can be changes nothing"
        assert (await answered(peer, checkpoint(session, step, lineage=1))).code in REFUSED
        assert await peer.next_step(session) == 0, "what is refused changes nothing"
        end = await answered(peer, checkpoint(session, step))
        assert end.code is grpc.StatusCode.OK, end
        assert pb.CheckpointWorkerResponse.FromString(end.responses[-1]).written
        assert await peer.next_step(session) == step
        assert (logs / f"{session}-trainer.steps").read_text() == f"passed 0 {step}\n"
        assert (await answered(peer, checkpoint(session, step - 1))).code in REFUSED, "no run goes back by itself"
        await peer.close_session(session)


async def test_a_session_is_joined_with_no_term_that_it_cannot_come_to(trainer):
    address, _ = trainer
    async with RawPeer(address, timeout_seconds=20) as peer:
        session = await peer.open()
        for term in (MOST_TERMS + 1, 2**64 - 1):
            assert (await peer.unary("JoinSession", joining(session, term))).code in REFUSED
        await peer.join(session, MOST_TERMS)
        await peer.close_session(session)


@pytest.mark.parametrize("changes", [WITHOUT_BLOCKS, {}], ids=["without blocks", "an owner"])
async def test_only_a_worker_with_blocks_of_others_begins_again_with_nothing(trainer, changes):
    address, _ = trainer
    async with RawPeer(address, timeout_seconds=20) as peer:
        session = await peer.open_and_join(**changes)
        call, request = begin_again(session, 3)
        request.placement.CopyFrom(placed(version=1, **changes))
        end = await answered(peer, (call, request))
        assert end.code is grpc.StatusCode.FAILED_PRECONDITION, end
        assert await peer.next_step(session) == 0
        await peer.close_session(session)
