"""A trainer's session goes back to what a checkpoint says, and to nothing that a session could not have been opened with."""

import pytest
import torch

from cloud_trainer.sessions.building import build_session
from cloud_trainer.sessions.limits import Limits
from shared.checkpoint import Checkpoint, CheckpointName
from shared.errors import IsthmusError, ProtocolError
from shared.model.chain import build_chain
from shared.training.held_state import copy_state, put_back, to_bytes
from shared.training.optimizers import OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import lone_stage
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, Fence
from tests.support.models.remembering import remembering
from tests.support.wire import open_request

RIGHT = {"version": "2", "cut": 1, "staleness": 3, "codec": "uniform8", "downlinkCodec": "fp16"}


@pytest.fixture
def session():
    limits = Limits(tensor_bytes=1 << 20, staleness=4, session_bytes=1 << 28)
    return build_session(open_request(), "s", ["shared.model.zoo"], limits, torch.device("cpu"))


def checkpoint(session, facts):
    return Checkpoint(CheckpointName(1, 7), facts, to_bytes(copy_state(session.training.held)))


def test_it_goes_on_with_the_deployment_of_the_checkpoint(session):
    session.training.restore(checkpoint(session, {"deployment": RIGHT}), 5)
    assert (session.training.next_step, session.training.lineage) == (7, 5)
    deployment = session.training.deployment
    assert (deployment.version, deployment.codec, deployment.staleness) == (2, "uniform8", 3)


def test_it_goes_on_without_a_block_where_the_checkpoint_has_none(session):
    held = session.block_digests()
    session.training.restore(Checkpoint(CheckpointName(1, 7), {"deployment": RIGHT | {"cut": 3}}, to_bytes({})), 5)
    assert copy_state(session.training.held) == {}
    assert session.block_digests() == held
    with pytest.raises(ProtocolError, match="block 2 is not in the cloud; none is"):
        session.training.check_owned(2)
    session.migrate(Deployment(version=3, cut=3, codec="fp32", downlink_codec="fp32"), 7, Fence(session_term=9))
    with pytest.raises(IsthmusError, match=r"without blocks \[2\]"):
        session.migrate(Deployment(version=4, cut=2, codec="fp32", downlink_codec="fp32"), 7, Fence(session_term=9))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, "its deployment cannot be read"),
        ({"deployment": None}, "its deployment cannot be read"),
        ({"deployment": [1]}, "its deployment cannot be read"),
        ({"deployment": RIGHT | {"cut": -1}}, "its deployment cannot be read"),
        ({"deployment": RIGHT | {"cut": 4}}, "cut 4 is out of range"),
        ({"deployment": RIGHT | {"cut": 3}}, "blocks"),
        ({"deployment": RIGHT | {"cut": 2}}, "blocks"),
        ({"deployment": RIGHT | {"codec": "zip"}}, "codec 'zip' does not exist"),
        ({"deployment": RIGHT | {"downlinkCodec": ""}}, "codec '' does not exist"),
        ({"deployment": RIGHT | {"staleness": 5}}, "a staleness of 5 is more than this trainer's limit of 4"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(session, facts, says):
    with pytest.raises(IsthmusError, match=says):
        session.training.restore(checkpoint(session, facts), 5)


def test_a_checkpoint_holds_the_buffers_that_no_state_dict_has():
    recipe = Recipe(
        optimizer=OptimizerConfig(), schedule=ScheduleConfig(), loss="mse", seed=1, steps_per_epoch=5, total_steps=5
    )
    one, other = (
        lone_stage(build_chain(remembering(), torch.ones(4, 64)), 1, 3, recipe, torch.device("cpu")) for _ in range(2)
    )
    one.forward_only(0, (torch.randn(4, 16),))
    put_back(other.held, range(1, 3), to_bytes(copy_state(one.held)))
    for ours, theirs in zip(one.blocks, other.blocks, strict=True):
        assert int(theirs.module.seen) == 1
        assert torch.equal(ours.module.mean, theirs.module.mean)
