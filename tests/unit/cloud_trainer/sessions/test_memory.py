"""What a session holds at most: model, batches in flight with their labels, and blocks on their way in."""

import pytest

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import Batches, SessionMemory
from shared.transport.rpc.status import StatusError

MODEL, STATE_COPY, UPLOADING, ROOM = 1000, 100, 300, 400
SMALL, LARGE = 20, 100
"""Bytes of a batch in all its copies."""


@pytest.fixture
def memory():
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + ROOM)
    return SessionMemory(limits, MODEL, STATE_COPY, UPLOADING)


def test_k_is_what_the_room_beside_the_model_holds_in_batches(memory):
    assert memory.max_staleness(SMALL) == ROOM // 20 - 1
    assert memory.max_staleness(LARGE) == ROOM // 100 - 1
    memory.check(Batches(4, LARGE))
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        memory.check(Batches(5, LARGE))


def test_labels_count_with_every_batch_in_flight_and_the_largest_count(memory):
    now = Batches(10, SMALL)
    memory.take_labels(10, now)
    memory.take_labels(3, now)
    assert memory.max_staleness(SMALL) == ROOM // 40 - 1, "any batch may have as many labels as one had"
    with pytest.raises(StatusError):
        memory.take_labels(11, now)
    assert memory.max_staleness(SMALL) == ROOM // 40 - 1, "what was refused is not held"


def test_a_change_to_larger_batches_counts_with_these(memory):
    memory.take_labels(10, Batches(4, SMALL))
    memory.check(Batches(4, SMALL))
    with pytest.raises(StatusError):
        memory.check(Batches(4, LARGE))


def test_blocks_on_their_way_count_beyond_the_copy_of_the_state_that_is_there_for_them(memory):
    full = Batches(4, LARGE)
    memory.begin_upload(STATE_COPY, full)
    with pytest.raises(StatusError, match="batches in flight"):
        memory.begin_upload(1, full)
    memory.end_upload(STATE_COPY)
    memory.set_aside(STATE_COPY + 1)
    with pytest.raises(StatusError):
        memory.check(full)
    memory.set_aside(0)
    memory.check(full)


def test_no_more_bytes_of_blocks_arrive_at_one_time_than_are_allowed(memory):
    few = Batches(1, SMALL)
    memory.begin_upload(UPLOADING, few)
    with pytest.raises(StatusError, match="many at one time"):
        memory.begin_upload(1, few)
    memory.end_upload(UPLOADING)
    memory.begin_upload(1, few)
