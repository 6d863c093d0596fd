"""The most memory of a session: the model, batches in flight with their labels, and blocks that arrive."""

import pytest

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import Batches, SessionMemory, Uses
from shared.transport.rpc.status import StatusError

MODEL, STATE, UPLOADING, ROOM = 1000, 100, 200, 400
FROZEN = 3000
SMALL, LARGE = 20, 100
"""Bytes of a batch, all its copies included."""


def uses(in_flight, each_bytes):
    """Describe a session that trains with so many batches in flight, and evaluates with less."""
    return Uses(Batches(in_flight, each_bytes), Batches(0, 0))


@pytest.fixture
def memory():
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + ROOM)
    return SessionMemory(limits, MODEL, [STATE // 4] * 4)


@pytest.fixture
def fine_tuning():
    """The memory of a session of whose weights few learn."""
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + ROOM)
    return SessionMemory(limits, MODEL, [STATE // 4] * 4, FROZEN)


def test_k_is_the_number_of_batches_that_fit_beside_the_model(memory):
    assert memory.max_staleness(Batches(1, SMALL)) == ROOM // 20 - 1
    assert memory.max_staleness(Batches(1, LARGE)) == ROOM // 100 - 1
    memory.check(uses(4, LARGE))
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        memory.check(uses(5, LARGE))


def test_labels_count_with_every_batch_in_flight_and_the_largest_count(memory):
    now = uses(10, SMALL)
    memory.take_labels(10, now)
    memory.take_labels(3, now)
    assert memory.max_staleness(Batches(1, SMALL)) == ROOM // 40 - 1, "any batch may have as many labels as one had"
    with pytest.raises(StatusError):
        memory.take_labels(11, now)
    assert memory.max_staleness(Batches(1, SMALL)) == ROOM // 40 - 1, "what was refused is not held"


def test_what_metrics_keep_counts_in_an_evaluation_alone():
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + ROOM)
    assert limits.metric_bytes == (MODEL + ROOM) // 16
    judging = SessionMemory(limits, MODEL, [STATE // 4] * 4, metric_bytes=limits.metric_bytes)
    judging.check(uses(ROOM // LARGE, LARGE))
    evaluated = Uses(Batches(0, 0), Batches(1, ROOM - limits.metric_bytes))
    judging.check(evaluated)
    judging.begin_upload(STATE, evaluated)
    with pytest.raises(StatusError, match="room for 0"):
        judging.begin_upload(1, evaluated)
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        judging.check(Uses(Batches(0, 0), Batches(1, ROOM - limits.metric_bytes + 1)))


def test_a_change_to_larger_batches_counts_with_these(memory):
    memory.take_labels(10, uses(4, SMALL))
    memory.check(uses(4, SMALL))
    with pytest.raises(StatusError):
        memory.check(uses(4, LARGE))


def test_blocks_on_their_way_count_beyond_the_copy_of_the_state_that_is_there_for_them(memory):
    full = uses(4, LARGE)
    memory.begin_upload(STATE, full)
    with pytest.raises(StatusError, match=r"room for 0 \(server\.max_session_bytes\)"):
        memory.begin_upload(1, full)
    memory.end_upload(STATE)
    memory.set_aside(STATE + 1)
    with pytest.raises(StatusError):
        memory.check(full)
    memory.set_aside(0)
    memory.check(full)


def test_no_more_bytes_of_blocks_arrive_at_one_time_than_are_allowed(memory):
    few = uses(1, SMALL)
    memory.begin_upload(UPLOADING, few)
    with pytest.raises(StatusError, match="many at one time"):
        memory.begin_upload(1, few)
    memory.end_upload(UPLOADING)
    memory.begin_upload(1, few)


def test_frozen_weights_may_arrive_twice_beside_the_states_and_no_byte_more(fine_tuning):
    few = uses(1, SMALL)
    fine_tuning.begin_upload(FROZEN + STATE, few)
    fine_tuning.begin_upload(ROOM - SMALL, few)
    with pytest.raises(StatusError, match=r"room for 0 \(server\.max_session_bytes\)") as refused:
        fine_tuning.begin_upload(1, few)
    assert refused.value.retry_after_seconds, "once one of them has come there is room"
    fine_tuning.end_upload(FROZEN + STATE)
    fine_tuning.begin_upload(FROZEN + STATE, few)
    roomy = SessionMemory(
        Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=1 << 20), MODEL, [STATE // 4] * 4, FROZEN
    )
    roomy.begin_upload(2 * (FROZEN + STATE), few)
    with pytest.raises(StatusError, match="many at one time"):
        roomy.begin_upload(1, few)


def test_copies_of_blocks_to_be_sent_have_no_frozen_weights(fine_tuning):
    full = uses(4, LARGE)
    with fine_tuning.copying(range(4), full):
        fine_tuning.begin_upload(FROZEN, full)
        with pytest.raises(StatusError, match="room for 0"):
            fine_tuning.begin_upload(1, full)


@pytest.mark.parametrize(
    ("now", "count", "says", "waits"),
    [
        (uses(1, SMALL), UPLOADING, "many at one time", True),
        (uses(1, SMALL), UPLOADING + 1, "many at one time", False),
        (uses(4, LARGE), STATE, "room for", True),
        (uses(4, LARGE), STATE + 1, "room for", False),
    ],
)
def test_nobody_is_told_to_wait_for_what_would_not_fit_alone_either(memory, now, count, says, waits):
    memory.begin_upload(1, now)
    with pytest.raises(StatusError, match=says) as refused:
        memory.begin_upload(count, now)
    assert bool(refused.value.retry_after_seconds) == waits


def test_outgoing_blocks_count_like_incoming_ones_until_they_are_sent(memory):
    full = uses(4, LARGE)
    with memory.copying([0, 1, 2], full), memory.copying([3], full):
        with pytest.raises(StatusError, match=r"25 bytes .* room for 0"), memory.copying([0], full):
            pass
        with pytest.raises(StatusError, match=r"1 bytes .* room for 0"):
            memory.begin_upload(1, full)
        memory.begin_upload(LARGE, uses(3, LARGE))
        memory.end_upload(LARGE)
    with memory.copying(range(4), full):
        pass


def test_a_session_that_cannot_evaluate_may_not_train_and_the_other_way_round(memory):
    fits, larger = Batches(4, LARGE), Batches(5, LARGE)
    memory.check(Uses(fits, fits))
    for wrong in (Uses(fits, larger), Uses(larger, fits)):
        with pytest.raises(StatusError, match=r"1[45]00 bytes of memory to train and 1[45]00 to evaluate") as refused:
            memory.check(wrong)
        assert "data.batch_size" in str(refused.value)
    memory.take_labels(1, Uses(Batches(1, SMALL), Batches(3, LARGE)))
    with pytest.raises(StatusError, match="to evaluate"):
        memory.take_labels(LARGE, Uses(Batches(1, SMALL), Batches(3, LARGE)))


def test_samples_that_come_before_their_step_count_with_their_labels(memory):
    label, copies = 4, 2
    room = ROOM - 2 * (SMALL + copies * label) - 3 * copies * label
    fits = Batches(2, SMALL, labels_ahead=3, ahead_bytes=room)
    memory.take_labels(label, Uses(fits, Batches(0, 0)))
    with pytest.raises(StatusError):
        memory.check(Uses(fits._replace(ahead_bytes=room + 1), Batches(0, 0)))
    with pytest.raises(StatusError):
        memory.take_labels(label + 1, Uses(fits, Batches(0, 0)))
