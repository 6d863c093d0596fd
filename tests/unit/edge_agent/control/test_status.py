"""The status of a run and of its sessions, in the words of the contract."""

import math
from itertools import pairwise

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

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


def row_at(step, *, seconds, **figures):
    return HistoryRow(step, 1, step, math.nan, None, None, 0.1, 2, 0, 32, seconds, 1, 1, 1.0)._replace(**figures)


def test_a_rate_of_zero_is_told_and_one_that_is_not_known_is_left_out():
    rows = [row_at(step, seconds=1.0, learning_rate=rate) for step, rate in enumerate((0.1, 0.0, None), 1)]
    answer = history_answer(rows)
    assert [row.get("learningRate") for row in json_format.MessageToDict(answer)["rows"]] == [0.1, 0.0, None]
    assert [row.learning_rate for row in rows_of(answer)] == [0.1, 0.0, None]


def alike(row):
    """A row as text: what is no number equals itself."""
    return repr(row._replace(metrics=sorted(row.metrics.items())))


def asked(rows, known):
    """Return what one that follows a history knows after asking again by JSON, as the page does, and how many rows came."""
    request = json_format.Parse(
        json_format.MessageToJson(pb.GetHistoryRequest(after=known[-1] if known else None)), pb.GetHistoryRequest()
    )
    answer = history_answer(rows, request.after)
    return [*(known if answer.follows else []), *answer.rows], len(answer.rows)


HAPPENED = st.sampled_from(["row", "row", "row", "judged", "back", "another run", "asked", "asked"])


@given(st.lists(st.tuples(HAPPENED, st.integers(1, 9)), max_size=40))
def test_one_that_asks_for_what_follows_its_newest_row_has_the_history(happened):
    rows, known, seconds = [], [], 0.0
    for what, number in happened:
        seconds += 0.001
        match what:
            case "row":
                rows.append(row_at(rows[-1].step + number if rows else number, seconds=seconds))
            case "judged" if rows:
                rows[-1] = rows[-1]._replace(test_loss=float(number), metrics={"b": 0.5, "a": math.nan})
            case "back":
                rows = rows[:-number]
            case "another run":
                rows = []
            case "asked":
                known, _ = asked(rows, known)
                assert [*map(alike, rows_of(pb.GetHistoryResponse(rows=known)))] == [*map(alike, rows)]


def test_what_is_known_is_not_told_again_unless_more_follows_than_one_answer_holds():
    rows = [row_at(step, seconds=step) for step in range(1, 1101)]
    known, told = asked(rows, [])
    assert told <= 500
    assert asked(rows, known) == (known, 0)
    rows += [row_at(step, seconds=step) for step in range(1101, 1104)]
    assert asked(rows, known)[1] == 3
    rows += [row_at(step, seconds=step) for step in range(1104, 2000)]
    known, told = asked(rows, known)
    assert (len(known), known[-1].step) == (told, 1999)
    assert told <= 500
