"""When a checkpoint is due, and that it stays due where it could not be taken."""

from types import SimpleNamespace

import pytest
import torch

from edge_agent.config import EdgeCheckpointsConfig
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.listener import RunListener
from edge_agent.training.step_boundary import StepBoundary
from shared.checkpoint import CheckpointName
from shared.errors import UnreachableError
from shared.model.chain import build_chain
from shared.training.held_blocks import HeldBlocks
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.virtual import InlineWorker
from tests.support.virtual_split import RECIPE, small_network


class Stored:
    """A session's files, in memory."""

    def __init__(self):
        self.store, self.shared, self.saved = self, None, []

    def save(self, name, _facts, _data):
        self.saved.append(name)

    def prune(self, _pinned):
        pass

    def set_shared(self, name):
        self.shared = name


class Link:
    """A stream that takes what is written, unless it is down."""

    def __init__(self):
        self.lineage, self.stream, self.down, self.asked = 0, self, False, []

    async def write(self, message):
        if self.down:
            raise UnreachableError("the link is down")
        self.asked.append(message.checkpoint.name.step)


@pytest.fixture
def held():
    chain = build_chain(small_network(), torch.randn(4, 6))
    return HeldBlocks(chain, RECIPE, torch.device("cpu"), range(2))


async def test_a_checkpoint_that_a_broken_link_kept_from_being_asked_for_stays_due(held):
    stored, link, boundary = Stored(), Link(), StepBoundary()
    inline = InlineWorker()
    checkpointer = Checkpointer(
        EdgeCheckpointsConfig(every_seconds=3600.0),
        stored,
        SimpleNamespace(compute=inline, disk=inline),
        boundary,
        RunListener(),
    )
    checkpointer.count_from(0)
    checkpointer.ask()
    assert boundary.requested
    link.down = True
    await checkpointer.take(5, link, held, {})
    assert not stored.saved, "a half that the trainer knows nothing of must not be written"
    assert checkpointer.due(6)
    assert checkpointer.next_stop_step(5, 100) == 6, "at the next step, and not after another hour"
    link.down = False
    await checkpointer.take(6, link, held, {})
    assert link.asked == [6]
    assert not checkpointer.due(7)
    checkpointer.note_checkpointed(pb.Checkpointed(name=pb.CheckpointName(step=6), written=True))
    await checkpointer.stop()
    assert stored.shared == CheckpointName(0, 6)
