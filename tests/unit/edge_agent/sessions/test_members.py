"""The trainers of a session under their own names and under others."""

from types import SimpleNamespace

import pytest

from edge_agent.sessions.members import Members
from shared.placement import two_workers


@pytest.fixture
def members():
    trainer = SimpleNamespace(name="trainer", client="the trainer's")
    return Members({"trainer": trainer}, (), two_workers("edge", "trainer", 1, 4, 8), {"spare": "the spare's"})


def test_a_trainer_that_is_left_out_is_asked_itself_not_the_one_that_stood_in_for_it(members):
    members.stand_in(SimpleNamespace(name="trainer", client="the spare's"), "spare")
    assert (members["trainer"].client, members.own_client("trainer")) == ("the spare's", "the trainer's")
    members.leave_out(["trainer"])
    assert members.left_out["trainer"].client == "the trainer's"
    assert members.stand_ins == {}
    assert members.own_client("trainer") is None
