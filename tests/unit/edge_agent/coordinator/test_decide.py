"""The answers of the coordinator to one event after the other."""

import pytest

from edge_agent.coordinator import (
    Action,
    BoundaryReached,
    ChangeDone,
    ChangeFailed,
    Coordinator,
    CoordinatorState,
    GoodWeightsWanted,
    Phase,
    SessionBegun,
    SessionGone,
    StopReached,
    TrainersAnswered,
    TrainerSilent,
    TrainersJoined,
    TrainerStopping,
    WaySought,
    WayTaken,
    WorkFailed,
)
from shared.errors import (
    BusyError,
    ConfigError,
    FencedError,
    GoneError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    UnreachableError,
)

REFUSAL, BROKEN, LOST, GONE = (
    RefusedError("no"),
    ProtocolError("what?"),
    SessionLostError("restarted"),
    GoneError("gone"),
)


def silent(seconds=2.0, replace_after_seconds=None, *, may_begin_again=False, has_checkpoint=True):
    return TrainerSilent(seconds, may_begin_again, 1.0, replace_after_seconds, has_checkpoint)


AWAY = silent(may_begin_again=True)
ANSWERED = TrainersAnswered(some_lost=False, may_begin_again=True)


def failed(failure, done_step=5, begun_step=5, *, is_own=False):
    return WorkFailed(failure, is_own, done_step, begun_step)


def boundary(*, is_end=False, is_leaving=False, must_stop=False, is_change_due=False, is_paused=False):
    return BoundaryReached(is_end, is_leaving, must_stop, is_change_due, is_paused)


def gone(*, has_checkpoint=False, is_closed=False, steps=0, is_member=False):
    return SessionGone(has_checkpoint, is_closed, steps, is_member)


@pytest.fixture
def training():
    coordinator = Coordinator(CoordinatorState())
    coordinator.tell(SessionBegun(is_resumed=False, is_again=False))
    assert coordinator.tell(TrainersJoined()) is Action.TRAIN
    return coordinator


def joined_again(coordinator, told):
    """The answer to a failure of steps; the trainers are joined after it."""
    action = coordinator.tell(told)
    if action is Action.RETRY:
        coordinator.tell(TrainersJoined())
    return action


@pytest.mark.parametrize("begun_step", [5, 8])
def test_a_second_refusal_at_the_same_steps_ends_the_run_whatever_is_under_way(training, begun_step):
    told = failed(REFUSAL, 5, begun_step)
    assert [joined_again(training, told) for _ in range(2)] == [Action.RETRY, Action.END]


@pytest.mark.parametrize("begun_step", [5, 8])
def test_failures_are_forgotten_once_all_steps_that_were_under_way_are_done(training, begun_step):
    beyond = max(begun_step, 6)
    first = [joined_again(training, failed(BROKEN, 5, begun_step)) for _ in range(3)]
    later = [joined_again(training, failed(REFUSAL, beyond, beyond)) for _ in range(2)]
    assert [*first, *later] == [*4 * [Action.RETRY], Action.END]


@pytest.mark.parametrize("begun_step", [5, 8])
def test_a_fourth_failure_short_of_these_steps_ends_the_run(training, begun_step):
    for _ in range(3):
        assert joined_again(training, failed(BROKEN, 5, begun_step)) is Action.RETRY
    assert training.tell(failed(BROKEN, max(begun_step, 6) - 1, begun_step)) is Action.END


def test_lost_sessions_count_for_nothing(training):
    for _ in range(100):
        assert joined_again(training, failed(LOST)) is Action.RETRY
    assert (training.state.failures, training.state.refusals) == (0, 0)


@pytest.mark.parametrize(
    "failure", [UnreachableError("away"), FencedError("another"), GONE, ConfigError("wrong"), BusyError("full")]
)
def test_what_no_join_can_mend_ends_a_run_that_joins(failure):
    assert Coordinator(CoordinatorState()).tell(failed(failure)) is Action.END


def test_a_run_that_does_not_wait_and_a_device_that_cannot_compute_end_at_once(training):
    impatient = Coordinator(CoordinatorState(waits=False))
    assert impatient.tell(failed(LOST)) is Action.END
    assert training.tell(failed(LOST, is_own=True)) is Action.END


def test_a_refusal_is_what_a_run_ends_with_where_nothing_is_left_to_try_it_again_from(training):
    assert training.tell(failed(REFUSAL)) is Action.RETRY
    assert training.tell(failed(GONE)) is Action.END_BY_FIRST
    assert training.state.mending is REFUSAL


def test_a_trainer_that_is_left_out_has_all_go_back_once(training):
    assert training.tell(silent(31.0, 30.0)) is Action.LEAVE_OUT
    assert training.tell(ANSWERED) is Action.GO_BACK
    assert training.tell(failed(LOST)) is Action.RETRY
    assert training.tell(ANSWERED) is Action.GO_BACK, "it had not gone back yet"
    training.tell(TrainersJoined())
    assert training.tell(ANSWERED) is Action.GO_ON


def test_a_lost_state_is_remembered_until_all_have_gone_back(training):
    assert training.tell(TrainersAnswered(some_lost=True, may_begin_again=False)) is Action.GO_BACK
    assert training.tell(TrainersAnswered(some_lost=True, may_begin_again=True)) is Action.GO_BACK


def test_a_resumed_run_goes_back_first():
    coordinator = Coordinator(CoordinatorState())
    assert coordinator.tell(SessionBegun(is_resumed=True, is_again=False)) is Action.JOIN
    assert coordinator.tell(ANSWERED) is Action.GO_BACK


def test_nobody_stands_in_while_a_placement_comes_into_force_or_all_go_back(training):
    assert training.tell(AWAY) is Action.STAND_IN
    assert training.tell(boundary(is_change_due=True)) is Action.CHANGE
    assert training.tell(AWAY) is Action.WAIT
    assert training.tell(ChangeDone()) is Action.TRAIN
    assert training.tell(AWAY) is Action.STAND_IN
    training.tell(TrainersAnswered(some_lost=True, may_begin_again=False))
    assert training.tell(AWAY) is Action.WAIT


def test_a_trainer_is_left_out_where_a_checkpoint_is_shared_and_stood_in_for_where_it_has_no_state(training):
    assert training.answer(silent(31.0, 30.0, has_checkpoint=False)) is Action.WAIT
    assert training.answer(silent(31.0)) is Action.WAIT, "no limit is set"
    assert training.answer(silent(29.0, 30.0)) is Action.WAIT
    assert training.answer(silent(29.0, 30.0, may_begin_again=True, has_checkpoint=False)) is Action.STAND_IN
    assert training.answer(silent(0.5, 30.0, may_begin_again=True)) is Action.WAIT


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({}, Action.TRAIN),
        ({"is_paused": True}, Action.PAUSE),
        ({"is_paused": True, "is_change_due": True}, Action.CHANGE),
        ({"is_paused": True, "is_change_due": True, "must_stop": True}, Action.CHECKPOINT),
        ({"must_stop": True, "is_leaving": True}, Action.TRAIN),
        ({"must_stop": True, "is_end": True}, Action.FETCH),
    ],
)
def test_at_a_boundary_a_stop_comes_before_another_placement_and_that_before_a_pause(training, told, answer):
    assert training.tell(boundary(**told)) is answer
    assert training.state.phase is (Phase.CHANGING if answer is Action.CHANGE else Phase.TRAINING)


def test_each_phase_is_noted_once_as_it_begins():
    noted, coordinator = [], Coordinator(CoordinatorState())
    coordinator.watch(noted.append)
    for told in (
        SessionBegun(is_resumed=False, is_again=False),
        TrainersJoined(),
        boundary(),
        failed(LOST),
        failed(GONE),
    ):
        coordinator.tell(told)
    assert noted == [Phase.JOINING, Phase.TRAINING, Phase.JOINING, Phase.ENDING]


def test_a_trainer_that_stops_is_waited_for_and_a_stop_that_is_asked_for_ends_training(training):
    assert training.tell(StopReached(is_asked=False)) is Action.JOIN
    assert training.tell(StopReached(is_asked=True)) is Action.FINISH
    assert training.state.phase is Phase.ENDING


def test_a_run_that_has_ended_brings_good_weights_home_and_mends_nothing(training):
    training.tell(failed(ConfigError("diverged")))
    assert training.tell(GoodWeightsWanted()) is Action.JOIN
    assert training.tell(ANSWERED) is Action.GO_BACK
    assert training.tell(TrainersJoined()) is Action.FINISH
    assert training.tell(failed(LOST)) is Action.END


@pytest.mark.parametrize(
    ("failure", "answers"),
    [
        (UnreachableError("away"), [Action.ASK_AGAIN, Action.ASK_AGAIN, Action.DROP]),
        (LOST, [Action.ASK_AGAIN, Action.ASK_AGAIN, Action.DROP]),
        (BROKEN, [Action.ASK_AGAIN, Action.ASK_AGAIN, Action.DROP]),
        (REFUSAL, [Action.DROP]),
        (None, [Action.DROP]),
        (GONE, [Action.END]),
        (FencedError("another"), [Action.END]),
    ],
)
def test_a_placement_is_asked_for_again_where_what_stopped_it_may_pass(training, failure, answers):
    given = []
    for attempt, answer in enumerate(answers, start=1):
        training.tell(boundary(is_change_due=True))
        given.append(training.tell(ChangeFailed(failure, attempt)))
        assert training.state.phase is (Phase.ENDING if answer is Action.END else Phase.JOINING)
        training.tell(TrainersJoined())
    assert given == answers


def test_a_way_through_another_trainer_is_kept_until_the_trainer_answers_by_itself(training):
    assert training.tell(WaySought(answers_itself=False, is_reached=True)) is Action.RELAY
    assert training.tell(WaySought(answers_itself=False, is_reached=False)) is Action.WAIT
    assert training.tell(WaySought(answers_itself=True, is_reached=True)) is Action.DIAL_ITSELF


def test_a_run_is_handed_over_to_the_trainer_on_the_way_where_nobody_else_chooses(training):
    assert training.tell(WayTaken(is_chosen=False, has_blocks=True, is_free=True)) is Action.HAND_OVER
    assert training.tell(WayTaken(is_chosen=True, has_blocks=True, is_free=True)) is Action.WAIT
    assert training.tell(WayTaken(is_chosen=False, has_blocks=True, is_free=False)) is Action.WAIT


def test_a_run_stops_for_a_trainer_that_stops_only_where_its_blocks_have_nowhere_to_go(training):
    assert training.tell(TrainerStopping(has_blocks=True, is_handed_over=False)) is Action.STOP
    assert training.tell(TrainerStopping(has_blocks=True, is_handed_over=True)) is Action.WAIT
    assert training.tell(TrainerStopping(has_blocks=False, is_handed_over=False)) is Action.WAIT


@pytest.mark.parametrize(
    ("is_again", "told", "answer"),
    [
        (False, gone(has_checkpoint=True), Action.END_RESUMABLE),
        (False, gone(is_closed=True, steps=3), Action.END),
        (False, gone(), Action.BEGIN_AGAIN),
        (True, gone(steps=3), Action.BEGIN_AGAIN),
        (True, gone(), Action.END),
        (True, gone(is_member=True), Action.BEGIN_AGAIN),
    ],
)
def test_a_session_that_is_gone_is_begun_again_where_both_sides_share_the_beginning(is_again, told, answer):
    coordinator = Coordinator(CoordinatorState())
    coordinator.tell(SessionBegun(is_resumed=False, is_again=is_again))
    assert coordinator.tell(told) is answer


def test_a_trainer_that_has_failed_in_a_run_that_began_again_would_fail_again(training):
    training.tell(SessionBegun(is_resumed=False, is_again=True))
    training.tell(TrainersJoined())
    assert training.tell(failed(BROKEN)) is Action.RETRY
    assert training.tell(failed(GONE)) is Action.END
    assert training.tell(gone(steps=5)) is Action.END_BY_FIRST
    assert training.state.mending is BROKEN
