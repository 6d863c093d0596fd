"""Lives of a group: the trainer that decides goes back where another one has lost its state, to what all have."""

import pytest

from cloud_trainer.groups.lives import MOST_AHEAD, Life, Position, common_checkpoints, next_number, read_positions
from shared.bounds import MOST_STEPS, MOST_TERMS, MOST_WORKERS
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.errors import ProtocolError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

MOST = 8
ORIGIN = CheckpointName(1, 10)
LIFE = Life(2, ORIGIN, 0, 5, {0: 0, 2: 9})


@pytest.mark.parametrize(
    ("other", "step", "has_lost", "goes_on_at"),
    [
        (Position(2, 12, ()), 13, False, 12),
        (Position(1, 14, (ORIGIN,)), 10, False, 10),
        (Position(0, 0, (ORIGIN,)), 10, False, 10),
        (Position(0, 0, (ORIGIN,)), 11, True, 10),
        (Position(0, 0, ()), 10, True, 10),
    ],
)
def test_a_trainer_has_lost_what_it_cannot_go_back_to(other, step, has_lost, goes_on_at):
    assert other.has_lost(LIFE, step) is has_lost
    assert other.step_in(LIFE) == goes_on_at


def test_a_trainer_with_nothing_begins_a_first_life_with_first_weights():
    first = Life(1, None, 1, 5, {0: 0, 1: 0})
    assert not Position(0, 0, ()).has_lost(first, 0)
    assert Position(0, 0, ()).has_lost(first, 1)


def test_the_newest_checkpoint_of_all_counts_and_numbers_rise():
    here = Position(0, 0, (CheckpointName(3, 30), CheckpointName(2, 20), ORIGIN))
    others = [Position(4, 33, (CheckpointName(2, 20), ORIGIN)), Position(1, 10, (CheckpointName(2, 20),))]
    assert common_checkpoints(here, others) == [CheckpointName(2, 20)]
    assert next_number(here, others) == 5
    assert common_checkpoints(here, []) == list(here.checkpoints)
    assert next_number(Position(0, 0, ()), []) == 1


def test_messages_bring_the_same():
    position = Position(2, 12, (CheckpointName(2, 10), ORIGIN))
    assert read_positions([position.message]) == [position]
    for life in (LIFE, Life(1, None, 3, 100, {})):
        assert Life.read(life.message, MOST) == life


@pytest.mark.parametrize(
    "said",
    [
        [pb.GroupPosition(life=2**64 - 1)],
        [pb.GroupPosition(step=MOST_STEPS + 1)],
        [pb.GroupPosition(checkpoints=[pb.CheckpointName()] * (MAX_NAMED + 1))],
        [pb.GroupPosition(checkpoints=[pb.CheckpointName(lineage=2**64 - 1)])],
        [pb.GroupPosition()] * (MOST_WORKERS + 1),
    ],
)
def test_positions_that_cannot_be_are_refused(said):
    with pytest.raises(ProtocolError):
        read_positions(said)


@pytest.mark.parametrize(
    "said",
    [
        pb.GroupLife(number=0, checkpoint_steps=1),
        pb.GroupLife(number=2**64 - 1, checkpoint_steps=1),
        pb.GroupLife(number=1),
        pb.GroupLife(number=1, checkpoint_steps=1, ranks=range(MOST + 1)),
        pb.GroupLife(number=1, checkpoint_steps=1, ranks=range(MOST), joiners=[pb.GroupJoiner(rank=1, first_step=2)]),
        pb.GroupLife(number=1, checkpoint_steps=2**64 - 1),
        pb.GroupLife(number=1, checkpoint_steps=1, origin=pb.CheckpointName(step=2**64 - 1)),
        pb.GroupLife(number=1, checkpoint_steps=1, joiners=[pb.GroupJoiner(rank=1, first_step=2**64 - 1)]),
    ],
)
def test_lives_that_cannot_be_are_refused(said):
    with pytest.raises(ProtocolError):
        Life.read(said, MOST)


def test_there_is_a_last_life():
    with pytest.raises(ProtocolError, match="the last that there can be"):
        next_number(Position(MOST_TERMS, 0, ()), [])


@pytest.mark.parametrize("known", [0, 7])
def test_a_claim_of_a_life_is_bounded_by_what_is_known_here(known):
    here, most = Position(0, 0, (CheckpointName(known, 4),)), known + MOST_AHEAD
    assert next_number(here, [Position(most, 0, ())]) == most + 1
    with pytest.raises(ProtocolError, match=f"this trainer knows of {known}"):
        next_number(here, [Position(most + 1, 0, ())])
