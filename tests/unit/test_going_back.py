"""A trainer's session goes back to what a checkpoint says, and to nothing that a session could not have been opened with."""

import pytest
import torch

from cloud_trainer.limits import Limits
from cloud_trainer.opening import open_session
from shared.checkpoint import Checkpoint, CheckpointName
from shared.errors import IsthmusError
from shared.model.stage_state import copy_state, to_bytes
from tests.support.wire import open_request

RIGHT = {"epoch": "2", "cut": 1, "staleness": 3, "codec": "uniform8", "downlinkCodec": "fp16"}


@pytest.fixture(scope="module")
def session():
    limits = Limits(tensor_bytes=1 << 20, staleness=4, session_bytes=1 << 28)
    return open_session(open_request(), "s", ["shared.model.zoo"], limits, torch.device("cpu"))


def checkpoint(session, facts):
    return Checkpoint(CheckpointName(1, 7), facts, to_bytes(copy_state(session.stage)))


def test_it_goes_on_with_the_deployment_of_the_checkpoint(session):
    session.go_back(checkpoint(session, {"deployment": RIGHT}), 5)
    assert (session.next_step, session.lineage) == (7, 5)
    assert (session.deployment.epoch, session.deployment.codec, session.deployment.staleness) == (2, "uniform8", 3)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, "its deployment cannot be read"),
        ({"deployment": None}, "its deployment cannot be read"),
        ({"deployment": [1]}, "its deployment cannot be read"),
        ({"deployment": RIGHT | {"cut": -1}}, "its deployment cannot be read"),
        ({"deployment": RIGHT | {"cut": 3}}, "cut 3 is out of range"),
        ({"deployment": RIGHT | {"cut": 2}}, "blocks"),
        ({"deployment": RIGHT | {"codec": "zip"}}, "codec 'zip' does not exist"),
        ({"deployment": RIGHT | {"downlinkCodec": ""}}, "codec '' does not exist"),
        ({"deployment": RIGHT | {"staleness": 5}}, "a staleness of 5 is more than this trainer's limit of 4"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(session, facts, says):
    with pytest.raises(IsthmusError, match=says):
        session.go_back(checkpoint(session, facts), 5)
