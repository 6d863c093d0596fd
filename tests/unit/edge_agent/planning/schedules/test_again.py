"""Schedules that are made again: when, and never for a schedule that is hardly better."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.schedules import STRATEGIES, Layers, ScheduleAgain, bounds_of
from edge_agent.planning.schedules.again import LEAST_SAVED, MOVED, kept

SECONDS = st.floats(0.001, 1.0)
EPOCH = 10


def layers_of(*rows, message_seconds=0.01):
    pull, forward, backward, push = zip(*rows, strict=True)
    return Layers(
        "drawn", message_seconds, tuple(map(str, range(len(rows)))), (8,) * len(rows), pull, forward, backward, push
    )


LAYERS = layers_of((0.1, 0.3, 0.2, 0.1), (0.2, 0.1, 0.4, 0.3), (0.3, 0.3, 0.2, 0.2))
WHOLE = (0, 3), (0, 3)


def made(layers=LAYERS):
    again = ScheduleAgain(STRATEGIES["dynacomm"], EPOCH)
    assert again.is_due(layers, 3), "there is none yet"
    again.made(layers, 3, WHOLE)
    return again


def test_one_is_made_for_each_epoch_and_where_anything_has_moved_by_more_than_a_tenth():
    again = made()
    assert not again.is_due(LAYERS, EPOCH - 1)
    assert again.is_due(LAYERS, EPOCH)
    little, much = 1.0 + MOVED - 0.01, 1.0 + MOVED + 0.01
    for row in ("pull_seconds", "push_seconds", "forward_seconds", "backward_seconds"):
        for factor, is_due in ((little, False), (much, True), (2.0 - little, False), (2.0 - much, True)):
            changed = replace(LAYERS, **{row: tuple(factor * seconds for seconds in getattr(LAYERS, row))})
            assert again.is_due(changed, 4) is is_due
    assert again.is_due(replace(LAYERS, message_seconds=0.012), 4)


def test_seconds_that_move_from_one_layer_to_another_count():
    swapped = replace(LAYERS, forward_seconds=LAYERS.forward_seconds[::-1], pull_seconds=LAYERS.pull_seconds[::-1])
    assert made().is_due(swapped, 4)


ROWS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=6)


@given(rows=ROWS, message=st.floats(0.0, 0.3), data=st.data())
def test_another_schedule_saves_a_twentieth_or_there_is_none(rows, message, data):
    layers = layers_of(*rows, message_seconds=message)
    inner = st.sets(st.integers(1, len(layers) - 1)) if len(layers) > 1 else st.just(set())
    pull, push = (tuple(sorted({0, len(layers), *data.draw(inner)})) for _ in range(2))
    today, best = kept(layers, pull, push), STRATEGIES["dynacomm"](layers)
    found = ScheduleAgain(STRATEGIES["dynacomm"], EPOCH).made(layers, 0, (pull, push))
    if found is None:
        assert best.step_seconds > (1.0 - LEAST_SAVED) * today.step_seconds
    else:
        assert found.step_seconds <= (1.0 - LEAST_SAVED) * today.step_seconds


@given(rows=ROWS)
def test_what_is_in_force_is_known_by_its_segments(rows):
    layers = layers_of(*rows)
    schedule = STRATEGIES["dynacomm"](layers)
    again = kept(layers, bounds_of(schedule.pull_segments), bounds_of(schedule.push_segments))
    assert (again.pull_segments, again.push_segments) == (schedule.pull_segments, schedule.push_segments)
    assert again.step_seconds == schedule.step_seconds
