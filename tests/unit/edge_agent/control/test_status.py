"""The status of a run and of its sessions, in the words of the contract."""

from itertools import pairwise

import pytest

from edge_agent.control.status import history_answer, rows_of, session_statuses
from edge_agent.coordinator import BoundaryReached, ChangeDone, Coordinator, CoordinatorState, StepsDone, TrainersJoined
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.training.events import Activity, CurrentActivity
from edge_agent.training.history import HistoryRow
from shared.checkpoint import CheckpointName
from shared.wire.isthmus.v1 import control_pb2 as pb


def test_every_activity_has_its_name_in_the_contract():
    def names(enum, prefix):
        return {name.removeprefix(prefix) for name in enum.DESCRIPTOR.values_by_name} - {"UNSPECIFIED"}

    assert {activity.name for activity in Activity} == names(pb.RunState, "RUN_STATE_")


def test_the_state_is_the_phase_of_the_run_or_what_it_does_at_a_boundary():
    seen, coordinator = [], Coordinator(CoordinatorState())
    activity = CurrentActivity(coordinator, lambda event: seen.append(event.activity))
    coordinator.tell(TrainersJoined())
    with activity.during(Activity.PAUSED):
        coordinator.tell(BoundaryReached(False, False, False, is_change_due=True, is_paused=True))
    coordinator.tell(ChangeDone())
    coordinator.tell(StepsDone())
    assert [one.name for one in seen] == ["JOINING", "TRAINING", "PAUSED", *2 * ["MIGRATING"], "TRAINING", "FINISHING"]


@pytest.mark.parametrize(
    ("newest", "is_open", "state"),
    [
        (None, False, pb.EDGE_SESSION_STATE_NOTHING_KEPT),
        (CheckpointName(0, 7), False, pb.EDGE_SESSION_STATE_RESUMABLE),
        (CheckpointName(0, 7), True, pb.EDGE_SESSION_STATE_RUNNING),
    ],
)
def test_an_unfinished_session_says_whether_it_goes_on(newest, is_open, state):
    record = SessionRecord(
        session_id="5e55",
        config={},
        samples=10,
        schedule_steps=9,
        start_digest=None,
        trainer="gpu:1",
        model="a.b:c",
        total_steps=9,
        began="2026-01-31T10:00:00.000001+00:00",
        shared=None if newest is None else (0, 7),
    )
    (status,) = session_statuses([(record, newest, is_open)])
    assert status.state == state
    assert status.HasField("checkpoint_step") == (newest is not None)
    assert status.began.ToJsonString() == "2026-01-31T10:00:00.000001Z"


def test_a_long_history_is_thinned_evenly_and_ends_with_the_newest_row():
    rows = [
        HistoryRow(step, 1, step, None, 0.5, None, 0.1, 2, 0, 32, 1.0, 1, 1, 1.0, None, {"top5": 0.5})
        for step in range(1, 1203)
    ]
    shown = [row.step for row in history_answer(rows).rows]
    assert (shown[-1], len(shown) <= 500, {b - a for a, b in pairwise(shown)}) == (1202, True, {3})
    assert [row.step for row in history_answer(rows[:500]).rows] == list(range(1, 501))
    assert not history_answer([]).rows
    (first,) = history_answer(rows[:1]).rows
    assert rows_of(history_answer(rows[:500])) == rows[:500]
    assert (first.HasField("train_loss"), first.test_loss, dict(first.metrics)) == (False, 0.5, {"top5": 0.5})
