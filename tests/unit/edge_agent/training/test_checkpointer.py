"""The times of checkpoints: one stays due until it is taken, and is shared once every part is written."""

import asyncio
from types import SimpleNamespace

import pytest

from edge_agent.config import EdgeCheckpointsConfig
from edge_agent.sessions.trainer_worker import TrainerWorker
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.step_boundary import StepBoundary
from shared.checkpoint import CheckpointName
from shared.errors import UnreachableError
from shared.events import ignore
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.placed import recipe
from tests.support.virtual import InlineWorker


class Trainer:
    """A trainer that copies and writes its part, unless it cannot be reached or its disk is full."""

    def __init__(self):
        self.down, self.full, self.asked = False, False, []

    async def checkpoint_worker(self, request):
        if self.down:
            raise UnreachableError("the link is down")
        self.asked.append(request.name.step)
        yield None
        yield not self.full


class Device:
    """A device that is its own part of every checkpoint."""

    def __init__(self):
        self.asked, self.saved = [], []

    def checkpoint(self, name, _facts):
        self.asked.append(name.step)
        return self

    async def copied(self):
        pass

    async def written(self):
        self.saved.append(self.asked[-1])

    async def give_up(self):
        pass


@pytest.fixture
def stored():
    stored = SimpleNamespace(store=object(), shared=None)
    stored.set_shared = lambda name: setattr(stored, "shared", name)
    return stored


@pytest.fixture
def trainers():
    return {"near": Trainer(), "far": Trainer()}


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def boundary():
    return StepBoundary()


@pytest.fixture
async def checkpointer(stored, trainers, device, boundary):
    without_blocks = SimpleNamespace(chain=SimpleNamespace(blocks=()), recipe=recipe("sgd"))
    state = SimpleNamespace(stored=stored, lineage=0, fence=pb.Fence(session_term=1), experiment=without_blocks)
    workers = [TrainerWorker(name, trainer, name, state) for name, trainer in trainers.items()]
    session = SimpleNamespace(
        stored=stored,
        state=state,
        experiment=without_blocks,
        placement=None,
        members=SimpleNamespace(holders=lambda _placement: workers),
        threads=SimpleNamespace(disk=InlineWorker()),
    )
    checkpointer = Checkpointer(EdgeCheckpointsConfig(every_seconds=3600.0), session, device, boundary, ignore)
    checkpointer.count_from(0)
    return checkpointer


async def test_a_checkpoint_that_a_broken_link_kept_from_being_asked_for_is_due_again_soon(
    checkpointer, stored, trainers, device, boundary
):
    checkpointer.ask()
    assert boundary.requested
    trainers["far"].down = True
    await checkpointer.take(5, {})
    assert not device.saved, "a part that a trainer knows nothing of must not be written"
    assert checkpointer.next_stop_step(5, 100) == 100, "a trainer that does not answer would delay each step"
    boundary.clear_request()
    async with asyncio.timeout(60):
        await boundary.wait_for_request()  # not only after another hour
    assert checkpointer.due(6)
    assert checkpointer.next_stop_step(5, 100) == 6
    trainers["far"].down = False
    await checkpointer.take(6, {})
    assert trainers["far"].asked == [6]
    assert not checkpointer.due(7)
    await checkpointer.stop()
    assert stored.shared == CheckpointName(0, 6)
    assert device.saved == [6]


async def test_one_that_is_ordered_while_parts_are_copied_is_taken_at_the_next_boundary(checkpointer, device, boundary):
    late = []

    async def copied():
        if not late:
            late.append(asyncio.ensure_future(checkpointer.order()))
            await asyncio.sleep(0)  # it is ordered now

    device.copied = copied
    await checkpointer.take(5, {})
    boundary.clear_request()
    await checkpointer.wait_until_written()
    assert boundary.requested, "it would wait for the seconds between two checkpoints"
    assert checkpointer.due(5)
    await checkpointer.take(5, {})
    assert await late[0] == CheckpointName(0, 5)
    assert not checkpointer.due(6)
    await checkpointer.stop()


async def test_a_checkpoint_of_which_a_part_is_not_written_is_not_shared(checkpointer, stored, trainers):
    trainers["near"].full = True
    ordered = asyncio.ensure_future(checkpointer.order())
    await asyncio.sleep(0)
    await checkpointer.take(5, {})
    with pytest.raises(UnreachableError, match="'near' has not written its part"):
        await ordered
    assert stored.shared is None
    trainers["near"].full = False
    checkpointer.ask()
    await checkpointer.take(6, {})
    await checkpointer.stop()
    assert stored.shared == CheckpointName(0, 6)
