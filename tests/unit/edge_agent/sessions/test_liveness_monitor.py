"""Absences of trainers, in virtual time: a trainer is asked only while no step ends, and given up only if others have
its blocks."""

import asyncio
import functools
import time
from types import SimpleNamespace

import pytest

from edge_agent.sessions.liveness_monitor import LOOK_SECONDS, QUIET_SECONDS, AwayTooLongError, LivenessMonitor
from edge_agent.sessions.stand_ins import StandIns, StoodInError
from shared.checkpoint import CheckpointName
from shared.errors import BusyError, UnreachableError

LIMIT_SECONDS = 30.0
_let_others_run = functools.partial(asyncio.sleep, 0)


class Trainer:
    """A trainer that serves, is away, or gives another answer."""

    def __init__(self):
        self.says, self.asked = None, 0

    async def check_serving(self):
        self.asked += 1
        if self.says is not None:
            raise self.says


class Needed(dict):
    """Trainers by name, all of which the run needs."""

    @property
    def needed(self):
        return list(self)


@pytest.fixture
def trainers():
    return {"near": Trainer(), "far": Trainer(), "cloud": Trainer()}


@pytest.fixture
def session(trainers):
    plan = SimpleNamespace(training=SimpleNamespace(links=()), evaluation=SimpleNamespace(links=()))
    everybody = {name: SimpleNamespace(client=client) for name, client in trainers.items()}
    return SimpleNamespace(
        members=Needed(everybody),
        state=SimpleNamespace(plan=plan),
        stored=SimpleNamespace(shared=CheckpointName(0, 1)),
        retry=SimpleNamespace(reasons=()),
        experiment=SimpleNamespace(
            config=SimpleNamespace(
                all_trainers=[
                    SimpleNamespace(name="near", replace_after_seconds=LIMIT_SECONDS, stand_in_after_seconds=1.0),
                    SimpleNamespace(name="far", replace_after_seconds=2 * LIMIT_SECONDS, stand_in_after_seconds=1.0),
                    SimpleNamespace(name="cloud", replace_after_seconds=None, stand_in_after_seconds=1.0),
                ]
            ),
        ),
    )


@pytest.fixture
def seconds(monkeypatch):
    """Return the time that has passed. Only a sleep lets it pass."""
    passed, sleep = [0.0], asyncio.sleep

    async def pass_time(count):
        passed[0] += count
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pass_time)
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    return passed


async def _lasts(seconds, until):
    while seconds[0] < until:
        await _let_others_run()
    return "done"


def monitor_of(session, progress, stand_ins=None):
    """Return a monitor of workers that all have a state, where no stand-ins are given."""
    return LivenessMonitor(session, progress, lambda: False, stand_ins or StandIns(session, lambda _name: False))


class Found:
    """Stand-ins of which one is found once it is asked for."""

    def __init__(self):
        self.forgotten = 0

    def forget(self):
        self.forgotten += 1

    async def find(self):
        return ["near"]


async def test_a_stand_in_ends_the_work_also_before_anything_is_shared(session, seconds):
    session.stored.shared, session.retry.reasons = None, ("near is gone",)
    with pytest.raises(StoodInError, match="stand in for near"):
        await monitor_of(session, lambda: 5, Found()).watch_over(_lasts(seconds, 1000.0))
    assert seconds[0] <= 2 * LOOK_SECONDS


async def test_no_stand_in_is_looked_for_while_steps_get_done(session, seconds):
    found = Found()
    assert await monitor_of(session, lambda: seconds[0], found).watch_over(_lasts(seconds, LIMIT_SECONDS)) == "done"
    assert found.forgotten


async def test_a_trainer_that_is_away_for_longer_than_its_limit_ends_the_work(session, trainers, seconds):
    trainers["near"].says = trainers["far"].says = trainers["cloud"].says = UnreachableError("gone")
    with pytest.raises(AwayTooLongError, match=r"replace_after_seconds: near$") as absent:
        await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0))
    assert absent.value.workers == ["near"]
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + QUIET_SECONDS + 2 * LOOK_SECONDS
    assert not trainers["cloud"].asked, "nobody waits for an end of its absence"


async def test_where_a_call_waits_for_a_trainer_its_absence_begins_at_once(session, trainers, seconds):
    trainers["near"].says, session.retry.reasons = UnreachableError("gone"), ("near is gone",)
    with pytest.raises(AwayTooLongError):
        await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0))
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + 2 * LOOK_SECONDS


async def test_an_absence_goes_on_from_one_work_to_the_next(session, trainers, seconds):
    trainers["near"].says = UnreachableError("gone")
    monitor = monitor_of(session, lambda: 5)
    assert await monitor.watch_over(_lasts(seconds, LIMIT_SECONDS - QUIET_SECONDS)) == "done"
    with pytest.raises(AwayTooLongError):
        await monitor.watch_over(_lasts(seconds, 1000.0))
    assert seconds[0] <= LIMIT_SECONDS + QUIET_SECONDS + 2 * LOOK_SECONDS


@pytest.mark.parametrize("answer", [None, BusyError("later")])
async def test_the_absence_of_a_trainer_that_answers_in_between_begins_again(session, trainers, seconds, answer):
    trainers["near"].says = UnreachableError("gone")
    monitor = monitor_of(session, lambda: 5)
    await monitor.watch_over(_lasts(seconds, LIMIT_SECONDS - QUIET_SECONDS))
    trainers["near"].says = answer
    await monitor.watch_over(_lasts(seconds, LIMIT_SECONDS + QUIET_SECONDS))
    trainers["near"].says = UnreachableError("gone")
    assert await monitor.watch_over(_lasts(seconds, 2 * LIMIT_SECONDS - QUIET_SECONDS)) == "done"


async def test_no_trainer_is_asked_while_steps_get_done(session, trainers, seconds):
    trainers["near"].says = UnreachableError("gone")
    assert await monitor_of(session, lambda: seconds[0]).watch_over(_lasts(seconds, 10 * LIMIT_SECONDS)) == "done"
    assert not trainers["near"].asked


async def test_before_anything_is_shared_no_absence_is_too_long(session, trainers, seconds):
    session.stored.shared = None
    trainers["near"].says = UnreachableError("gone")
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 10 * LIMIT_SECONDS)) == "done"


async def test_the_works_own_failure_is_what_ends_it(session):
    async def fails():
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await monitor_of(session, lambda: 5).watch_over(fails())
