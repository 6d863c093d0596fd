"""A callback's thread: the events in their order, however slow the callback is, and nobody waits for it."""

import threading

import pytest
from structlog.testing import capture_logs

import isthmus
from edge_agent.callbacks.callback_thread import MOST_STEPS_WAITING, MOST_WAITING, CallbackThread
from edge_agent.callbacks.run_callbacks import RunCallbacks
from edge_agent.training.events import TOLD, Ended, Relayed, RolledBack, StepFinished
from edge_agent.training_config import TrainingConfig
from shared.errors import ConfigError
from shared.events import Events

NOBODY = object()


def step(number):
    return StepFinished(number, 8, 0.5, 0.0, 0.0)


def test_programs_may_import_each_event_that_callbacks_are_told():
    assert {kind.__name__ for kind in TOLD} < set(isthmus.__all__)
    for kind in TOLD:
        assert getattr(isthmus, kind.__name__) is kind


async def test_events_come_in_order_and_the_end_of_the_run_waits_for_them():
    told = []
    events = Events()
    callbacks = RunCallbacks([CallbackThread("mine:keep", lambda event, _run: told.append(event))])
    callbacks.subscribe(events)
    sent = [step(0), RolledBack(0), step(0), step(1), Ended(None, "stopped")]
    events.emit(sent[0])
    async with callbacks.running(NOBODY):
        for event in sent[1:]:
            events.emit(event)
    assert told == sent


async def test_a_run_that_fails_is_the_end():
    told, events = [], Events()
    callbacks = RunCallbacks([CallbackThread("mine:keep", lambda event, _run: told.append(event))])
    callbacks.subscribe(events)
    with pytest.raises(ConfigError):
        async with callbacks.running(NOBODY):
            raise ConfigError("no such key")
    assert told == [Ended(None, "no such key")]


async def test_a_callback_that_raises_is_left_out_and_said_once_by_its_name():
    told = []

    def fail(event, _run):
        told.append(event)
        raise SystemExit("full")

    events = Events()
    kept = []
    callbacks = RunCallbacks(
        [CallbackThread("mine:fail", fail), CallbackThread("mine:keep", lambda event, _run: kept.append(event))]
    )
    callbacks.subscribe(events)
    with capture_logs() as logs:
        async with callbacks.running(NOBODY):
            for number in range(5):
                events.emit(step(number))
            events.emit(Ended(None))
    assert told == [step(0)]
    assert kept == [*map(step, range(5)), Ended(None)]
    (warning,) = logs
    assert (warning["callback"], warning["reason"]) == ("mine:fail", "SystemExit: full")


async def test_events_of_steps_leave_room_for_others_and_what_is_dropped_is_said_once():
    told, may_go_on = [], threading.Event()

    def wait(event, _run):
        may_go_on.wait()
        told.append(event)

    events = Events()
    callbacks = RunCallbacks([CallbackThread("mine:slow", wait)])
    callbacks.subscribe(events)
    with capture_logs() as logs:
        for number in range(MOST_STEPS_WAITING + 5):
            events.emit(step(number))
        for _ in range(MOST_WAITING):
            events.emit(Relayed({}))
        events.emit(Ended(None))
        async with callbacks.running(NOBODY):
            may_go_on.set()
    steps, others = [event for event in told if type(event) is StepFinished], told[MOST_STEPS_WAITING:-1]
    assert steps == [*map(step, range(MOST_STEPS_WAITING))]
    assert others == [Relayed({})] * (MOST_WAITING - MOST_STEPS_WAITING)
    assert told[-1] == Ended(None)
    (warning,) = logs
    assert warning["callback"] == "mine:slow"


async def test_a_run_ends_without_a_callback_that_hangs():
    told, may_go_on = [], threading.Event()

    def hang(event, _run):
        told.append(event)
        may_go_on.wait()

    events = Events()
    callbacks = RunCallbacks([CallbackThread("mine:hangs", hang)])
    callbacks.subscribe(events)
    with capture_logs() as logs:
        async with callbacks.running(NOBODY, end_seconds=0.01):
            events.emit(step(0))
            events.emit(Ended(None))
    may_go_on.set()
    (warning,) = logs
    assert warning["callback"] == "mine:hangs"
    assert told in ([], [step(0)])


class _Deaf(Events):
    def subscribe(self, kind, reader):
        raise AssertionError(f"{reader} reads {kind}")


async def test_without_callbacks_nobody_listens_and_no_thread_is_there():
    callbacks = RunCallbacks.made(TrainingConfig())
    callbacks.subscribe(_Deaf())
    async with callbacks.running(NOBODY):
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("callback")]
