"""Absences of trainers, in virtual time: a trainer is asked only while no step ends, and given up only if others have
its blocks."""

import asyncio
import functools
import time
from types import SimpleNamespace

import pytest

from edge_agent.coordinator import Coordinator, CoordinatorState, Phase, TrainersJoined
from edge_agent.sessions.liveness_monitor import LOOK_SECONDS, QUIET_SECONDS, LivenessMonitor
from edge_agent.sessions.membership import Membership
from edge_agent.sessions.step_watch import Stall
from shared.checkpoint import CheckpointName
from shared.client.retry import Retry
from shared.errors import BusyError, StalledError, UnreachableError
from shared.placement import AGENT, Placement, Rows, Source, Tile

LIMIT_SECONDS, CALL_SECONDS, STAND_IN_SECONDS = 30.0, 300.0, 1.0
WHOLE = Rows(0, 8)
TILES = tuple(Tile(name, block, block + 1, WHOLE) for block, name in enumerate(("near", "far", "cloud")))
PLACEMENT = Placement(0, 3, 8, (AGENT, "near", "far", "cloud"), TILES, (Source(AGENT, WHOLE),))
_let_others_run = functools.partial(asyncio.sleep, 0)


class Trainer:
    """A trainer that serves, is away, or gives another answer."""

    def __init__(self):
        self.says, self.asked, self.unanswered_since = None, 0, None

    async def check_serving(self):
        self.asked += 1
        if self.says is not None:
            raise self.says


def configured(name, replace_after_seconds):
    return SimpleNamespace(
        name=name,
        replace_after_seconds=replace_after_seconds,
        stand_in_after_seconds=STAND_IN_SECONDS,
        give_up_seconds=None,
        call_timeout_seconds=CALL_SECONDS,
    )


@pytest.fixture
def trainers():
    return {"near": Trainer(), "far": Trainer(), "cloud": Trainer()}


@pytest.fixture
def session(trainers):
    plan = SimpleNamespace(training=SimpleNamespace(links=()), evaluation=SimpleNamespace(links=()))
    everybody = {name: SimpleNamespace(name=name, client=client) for name, client in trainers.items()}
    return SimpleNamespace(
        members=Membership(everybody, (), PLACEMENT, {}),
        state=SimpleNamespace(plan=plan),
        stored=SimpleNamespace(shared=CheckpointName(0, 1)),
        retry=Retry(None),
        coordinator=Coordinator(CoordinatorState(Phase.TRAINING)),
        experiment=SimpleNamespace(
            config=SimpleNamespace(
                all_trainers=[
                    configured("near", LIMIT_SECONDS),
                    configured("far", 2 * LIMIT_SECONDS),
                    configured("cloud", None),
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


class Steps:
    """A watch over steps that sees what it is told to."""

    def __init__(self):
        self.stall, self.goes_on, self.noted = None, False, []

    async def look(self):
        return self.stall

    async def goes_on_without(self, _worker):
        return self.goes_on


def monitor_of(session, progress, stateless=(), steps=None):
    """Return a monitor of workers, of which these have no state."""
    steps = steps or Steps()
    told = steps.goes_on_without, steps.noted.append
    return LivenessMonitor(session, progress, lambda: False, stateless.__contains__, lambda: steps, *told)


@pytest.fixture
def tried(monkeypatch):
    """Return the workers for which others were to stand in: each finds one."""
    names = []

    async def find_stand_in(_session, name, _silence):
        names.append(name)
        return True

    monkeypatch.setattr("edge_agent.sessions.liveness_monitor.find_stand_in", find_stand_in)
    return names


@pytest.mark.usefixtures("seconds")
async def test_all_go_back_also_where_the_work_joins_the_trainers_while_one_is_left_out(session, trainers):
    async def joins_at_its_end():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            session.coordinator.tell(TrainersJoined())

    trainers["near"].says = UnreachableError("away")
    assert await monitor_of(session, lambda: 5).watch_over(joins_at_its_end()) is None
    assert session.members.left_out == ["near"]
    assert session.coordinator.state.goes_back
    assert session.coordinator.state.phase is Phase.JOINING


async def test_a_stand_in_ends_the_work_also_before_anything_is_shared(session, trainers, seconds, tried):
    session.stored.shared = None
    trainers["cloud"].says = UnreachableError("gone")
    session.retry.note_waiting("call", "cloud is gone")
    assert await monitor_of(session, lambda: 5, ["cloud"]).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.coordinator.state.phase is Phase.JOINING
    assert (tried, session.members.left_out) == (["cloud"], [])
    assert STAND_IN_SECONDS <= seconds[0] <= STAND_IN_SECONDS + 2 * LOOK_SECONDS


async def test_a_trainer_that_never_answers_is_as_one_that_is_gone(session, trainers, seconds, monkeypatch):
    async def never():
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("edge_agent.sessions.silence.OTHERS_SECONDS", 0.0)
    trainers["near"].check_serving = never
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.members.left_out == ["near"]
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + QUIET_SECONDS + 2 * LOOK_SECONDS
    assert trainers["far"].asked > 1, "the others are asked on"


async def test_a_late_answer_is_one(session, trainers, seconds, monkeypatch):
    async def late():
        until = seconds[0] + 3.0
        while seconds[0] < until:
            await _let_others_run()

    monkeypatch.setattr("edge_agent.sessions.silence.OTHERS_SECONDS", 0.0)
    trainers["near"].check_serving = late
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 10 * LIMIT_SECONDS)) == "done"


async def test_no_stand_in_is_looked_for_while_steps_get_done(session, trainers, seconds, tried):
    trainers["near"].says = UnreachableError("gone")
    assert await monitor_of(session, lambda: seconds[0], ["near"]).watch_over(_lasts(seconds, LIMIT_SECONDS)) == "done"
    assert not tried


async def test_a_trainer_that_is_away_for_longer_than_its_limit_ends_the_work(session, trainers, seconds):
    trainers["near"].says = trainers["far"].says = trainers["cloud"].says = UnreachableError("gone")
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.members.left_out == ["near"]
    assert session.coordinator.state.goes_back
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + QUIET_SECONDS + 2 * LOOK_SECONDS
    assert not trainers["cloud"].asked, "nobody waits for an end of its absence"


async def test_where_a_call_waits_for_a_trainer_its_absence_begins_at_once(session, trainers, seconds):
    trainers["near"].says = UnreachableError("gone")
    session.retry.note_waiting("call", "near is gone")
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0)) is None
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + 2 * LOOK_SECONDS


async def test_an_absence_goes_on_from_one_work_to_the_next(session, trainers, seconds):
    trainers["near"].says = UnreachableError("gone")
    monitor = monitor_of(session, lambda: 5)
    assert await monitor.watch_over(_lasts(seconds, LIMIT_SECONDS - QUIET_SECONDS)) == "done"
    assert await monitor.watch_over(_lasts(seconds, 1000.0)) is None
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


class Stalled(Steps):
    """A step that a worker has held up since the beginning."""

    def __init__(self, worker, seconds, limit_seconds=10.0, *, goes_on=False):
        super().__init__()
        self._worker, self._seconds, self._limit_seconds, self.goes_on = worker, seconds, limit_seconds, goes_on

    async def look(self):
        passed = self._seconds[0]
        held = passed >= self._limit_seconds
        return Stall(self._worker, f"{self._worker} holds up", passed, self._limit_seconds) if held else None


async def test_a_trainer_that_holds_a_step_up_is_left_as_one_that_is_away(session, seconds):
    steps = Stalled("near", seconds)
    assert await monitor_of(session, lambda: 5, steps=steps).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.members.left_out == ["near"]
    assert LIMIT_SECONDS <= seconds[0] <= LIMIT_SECONDS + 2 * LOOK_SECONDS
    assert set(steps.noted) == {"near holds up"}, "whoever waits for a boundary is told"
    assert session.members.stalled == ["near"], "it answers, and gets nothing by itself"


async def test_one_whose_blocks_a_checkpoint_has_elsewhere_is_left_at_once(session, seconds):
    steps = Stalled("cloud", seconds, goes_on=True)
    assert await monitor_of(session, lambda: 5, steps=steps).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.members.left_out == ["cloud"]
    assert seconds[0] <= 10.0 + 2 * LOOK_SECONDS


@pytest.mark.parametrize(("worker", "shared"), [("cloud", CheckpointName(0, 1)), ("near", None), (None, None)])
async def test_where_there_is_nothing_to_go_to_the_wait_is_named_and_ends(session, seconds, worker, shared):
    session.stored.shared = shared
    named = []

    async def work():
        while seconds[0] < 1000.0:
            named.extend(session.retry.reasons)
            await _let_others_run()

    with pytest.raises(StalledError, match=r"holds up; no step was done for 31\d s$"):
        await monitor_of(session, lambda: 5, steps=Stalled(worker, seconds)).watch_over(work())
    assert 10.0 + CALL_SECONDS <= seconds[0] <= 10.0 + CALL_SECONDS + 2 * LOOK_SECONDS
    assert set(named) == {f"{worker} holds up"}
    assert not session.retry.reasons


async def test_a_run_waits_for_its_own_device_and_says_so(session, seconds):
    monitor = monitor_of(session, lambda: 5, steps=Stalled(AGENT, seconds))
    assert await monitor.watch_over(_lasts(seconds, 10 * CALL_SECONDS)) == "done"
    assert not session.members.stalled


async def test_a_trainer_whose_work_may_begin_again_is_stood_in_for_although_it_answers(session, seconds, tried):
    steps = Stalled("cloud", seconds)
    assert await monitor_of(session, lambda: 5, ["cloud"], steps).watch_over(_lasts(seconds, 1000.0)) is None
    assert tried == ["cloud"]


async def test_one_that_leaves_calls_unanswered_is_away_whatever_it_answers(session, trainers, seconds):
    trainers["near"].unanswered_since = 1.0
    assert await monitor_of(session, lambda: 5).watch_over(_lasts(seconds, 1000.0)) is None
    assert session.members.left_out == ["near"]
    assert LIMIT_SECONDS + 1.0 <= seconds[0] <= LIMIT_SECONDS + 1.0 + 2 * LOOK_SECONDS
