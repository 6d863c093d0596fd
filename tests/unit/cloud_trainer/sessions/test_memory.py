"""The most memory of a session: the model, batches in flight with their labels, and blocks that arrive."""

import pytest

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import Batches, SessionMemory, Uses
from shared.transport.rpc.status import StatusError

MODEL, STATE, UPLOADING, ROOM = 1000, 100, 200, 400
FROZEN = 3000
SMALL, LARGE = 20, 100
"""Bytes of a batch, all its copies included."""
NOTHING = Uses(Batches(0, 0), Batches(0, 0))


def uses(in_flight, each_bytes):
    """Describe a session that trains with so many batches in flight, and evaluates with less."""
    return Uses(Batches(in_flight, each_bytes), Batches(0, 0))


def memory_of(now=NOTHING, room=ROOM, **more):
    """Make the memory of a session under a placement with such batches."""
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + room)
    memory = SessionMemory(limits, MODEL, [STATE // 4] * 4, **more)
    memory.uses = now
    return memory


def fine_tuning(now, room=ROOM):
    """Make the memory of a session of whose weights few learn."""
    return memory_of(now, room, frozen_bytes=FROZEN)


def test_k_is_the_number_of_batches_that_fit_beside_the_model():
    memory = memory_of(uses(1, SMALL))
    assert memory.max_staleness == ROOM // 20 - 1
    memory.uses = uses(1, LARGE)
    assert memory.max_staleness == ROOM // 100 - 1
    memory.check(uses(4, LARGE))
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        memory.check(uses(5, LARGE))


def test_labels_count_with_every_batch_in_flight_and_the_largest_count():
    memory = memory_of(uses(10, SMALL))
    memory.take_labels(10)
    memory.take_labels(3)
    assert memory.max_staleness == ROOM // 40 - 1, "any batch may have as many labels as one had"
    with pytest.raises(StatusError):
        memory.take_labels(11)
    assert memory.max_staleness == ROOM // 40 - 1, "what was refused is not held"


def test_what_metrics_keep_counts_in_an_evaluation_alone():
    metric_bytes = (MODEL + ROOM) // 16
    assert Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + ROOM).metric_bytes == metric_bytes
    judging = memory_of(metric_bytes=metric_bytes)
    judging.check(uses(ROOM // LARGE, LARGE))
    judging.uses = Uses(Batches(0, 0), Batches(1, ROOM - metric_bytes))
    judging.check(judging.uses)
    judging.begin_upload(STATE)
    with pytest.raises(StatusError, match="room for 0"):
        judging.begin_upload(1)
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        judging.check(Uses(Batches(0, 0), Batches(1, ROOM - metric_bytes + 1)))


def test_a_change_to_larger_batches_counts_with_these():
    memory = memory_of(uses(4, SMALL))
    memory.take_labels(10)
    memory.check(uses(4, SMALL))
    with pytest.raises(StatusError):
        memory.check(uses(4, LARGE))


def test_blocks_on_their_way_count_beyond_the_copy_of_the_state_that_is_there_for_them():
    full = uses(4, LARGE)
    memory = memory_of(full)
    memory.begin_upload(STATE)
    with pytest.raises(StatusError, match=r"room for 0 \(server\.max_session_bytes\)"):
        memory.begin_upload(1)
    memory.end_upload(STATE)
    memory.set_aside(STATE + 1)
    with pytest.raises(StatusError):
        memory.check(full)
    memory.set_aside(0)
    memory.check(full)


def test_no_more_bytes_of_blocks_arrive_at_one_time_than_are_allowed():
    memory = memory_of(uses(1, SMALL))
    memory.begin_upload(UPLOADING)
    with pytest.raises(StatusError, match="many at one time"):
        memory.begin_upload(1)
    memory.end_upload(UPLOADING)
    memory.begin_upload(1)


def test_frozen_weights_may_arrive_twice_beside_the_states_and_no_byte_more():
    memory = fine_tuning(uses(1, SMALL))
    memory.begin_upload(FROZEN + STATE)
    memory.begin_upload(ROOM - SMALL)
    with pytest.raises(StatusError, match=r"room for 0 \(server\.max_session_bytes\)") as refused:
        memory.begin_upload(1)
    assert refused.value.retry_after_seconds, "once one of them has come there is room"
    memory.end_upload(FROZEN + STATE)
    memory.begin_upload(FROZEN + STATE)
    roomy = fine_tuning(uses(1, SMALL), room=1 << 20)
    roomy.begin_upload(2 * (FROZEN + STATE))
    with pytest.raises(StatusError, match="many at one time"):
        roomy.begin_upload(1)


def test_copies_of_blocks_to_be_sent_have_no_frozen_weights():
    memory = fine_tuning(uses(4, LARGE))
    with memory.copying(range(4)):
        memory.begin_upload(FROZEN)
        with pytest.raises(StatusError, match="room for 0"):
            memory.begin_upload(1)


@pytest.mark.parametrize(
    ("now", "count", "says", "waits"),
    [
        (uses(1, SMALL), UPLOADING, "many at one time", True),
        (uses(1, SMALL), UPLOADING + 1, "many at one time", False),
        (uses(4, LARGE), STATE, "room for", True),
        (uses(4, LARGE), STATE + 1, "room for", False),
    ],
)
def test_nobody_is_told_to_wait_for_what_would_not_fit_alone_either(now, count, says, waits):
    memory = memory_of(now)
    memory.begin_upload(1)
    with pytest.raises(StatusError, match=says) as refused:
        memory.begin_upload(count)
    assert bool(refused.value.retry_after_seconds) == waits


def test_outgoing_blocks_count_like_incoming_ones_until_they_are_sent():
    memory = memory_of(uses(4, LARGE))
    with memory.copying([0, 1, 2]), memory.copying([3]):
        with pytest.raises(StatusError, match=r"25 bytes .* room for 0"), memory.copying([0]):
            pass
        with pytest.raises(StatusError, match=r"1 bytes .* room for 0"):
            memory.begin_upload(1)
        memory.uses = uses(3, LARGE)
        memory.begin_upload(LARGE)
        memory.end_upload(LARGE)
    memory.uses = uses(4, LARGE)
    with memory.copying(range(4)):
        pass


def test_a_session_that_cannot_evaluate_may_not_train_and_the_other_way_round():
    fits, larger = Batches(4, LARGE), Batches(5, LARGE)
    memory = memory_of(Uses(Batches(1, SMALL), Batches(3, LARGE)))
    memory.check(Uses(fits, fits))
    for wrong in (Uses(fits, larger), Uses(larger, fits)):
        with pytest.raises(StatusError, match=r"1[45]00 bytes of memory to train and 1[45]00 to evaluate") as refused:
            memory.check(wrong)
        assert "data.batch_size" in str(refused.value)
    memory.take_labels(1)
    with pytest.raises(StatusError, match="to evaluate"):
        memory.take_labels(LARGE)


def test_samples_that_come_before_their_step_count_with_their_labels():
    label, copies = 4, 2
    room = ROOM - 2 * (SMALL + copies * label) - 3 * copies * label
    fits = Batches(2, SMALL, labels_ahead=3, ahead_bytes=room)
    memory = memory_of(Uses(fits, Batches(0, 0)))
    memory.take_labels(label)
    with pytest.raises(StatusError):
        memory.check(Uses(fits._replace(ahead_bytes=room + 1), Batches(0, 0)))
    with pytest.raises(StatusError):
        memory.take_labels(label + 1)
