"""Steps that are held up although everybody answers, in virtual time: who is named, and what may take long."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from edge_agent.sessions.step_watch import ANSWER_SECONDS, EVERY_SECONDS, LONGER, StepWatch
from shared.errors import UnreachableError
from shared.placement import AGENT, GROUP
from shared.wire.isthmus.v1 import trainer_pb2 as pb

LEAST_SECONDS, FIRST_SECONDS = 60.0, 300.0


class Trainer:
    """A trainer that says what it waits for."""

    def __init__(self, *awaited):
        self.awaited, self.progress, self.failure = awaited, 0, None

    async def remind(self):
        if self.failure is not None:
            raise self.failure
        return pb.GetSessionResponse(next_step=7, awaited=self.awaited, progress=self.progress)


class Members(dict):
    """All trainers that are needed."""

    @property
    def needed(self):
        return list(self)


class Run:
    """A run at step 7, of which `awaited` is missing here, and its watch: a second passes between two looks."""

    def __init__(self, awaited, step_seconds=0.1, **trainers):
        self.trainers = trainers
        configured = [
            SimpleNamespace(name=name, no_step_seconds=LEAST_SECONDS, call_timeout_seconds=FIRST_SECONDS)
            for name in trainers
        ]
        session = SimpleNamespace(
            members=Members(trainers),
            experiment=SimpleNamespace(config=SimpleNamespace(all_trainers=configured)),
        )
        plan = SimpleNamespace(program=lambda _name: True)
        self.window = SimpleNamespace(plan=plan, first=0, settled=6, owed=6, done=6, unreported=())
        self.executor = SimpleNamespace(window=self.window, progress=0, awaited=frozenset(awaited))
        self.seconds = 1000.0
        self._session = session
        self.begin_watch(step_seconds)
        self.step()

    def begin_watch(self, step_seconds):
        """Watch from here on, as after a join."""
        self.watch = StepWatch(self._session, SimpleNamespace(executor=self.executor), lambda: step_seconds)

    def step(self):
        for count in ("settled", "owed", "done"):
            setattr(self.window, count, getattr(self.window, count) + 1)

    async def pass_seconds(self, count, each_second=lambda: None):
        """Return what is seen first, if anything is in so many seconds."""
        for _ in range(round(count)):
            self.seconds += 1.0
            each_second()
            if (stall := await self.watch.look()) is not None:
                return stall
        return None


@pytest.fixture
def run_of(monkeypatch):
    def make(awaited, **more):
        run = Run(awaited, **more)
        monkeypatch.setattr(time, "monotonic", lambda: run.seconds)
        return run

    return make


@pytest.mark.parametrize(
    ("trainers", "worker", "says"),
    [
        (
            {"near": Trainer()},
            "near",
            "trainer 'near' holds up step 7: it answers, has what it needs, and does nothing",
        ),
        (
            {"near": Trainer(AGENT)},
            "near",
            "trainer 'near' holds up step 7: it says that it waits for what it was sent",
        ),
        ({"near": Trainer("far"), "far": Trainer("cloud"), "cloud": Trainer()}, "cloud", "trainer 'cloud' holds up"),
        ({"near": Trainer("far"), "far": Trainer(), "cloud": Trainer("near")}, "far", "trainer 'far' holds up"),
        ({"near": Trainer("far"), "far": Trainer("near")}, None, "they wait, 'near' for 'far', 'far' for 'near'"),
        ({"near": Trainer("nobody")}, "near", "trainer 'near' holds up"),
    ],
)
async def test_who_holds_a_step_up_is_named(run_of, trainers, worker, says):
    run = run_of({"near"}, **trainers)
    stall = await run.pass_seconds(LEAST_SECONDS + EVERY_SECONDS + 2)
    assert stall.worker == worker
    assert says in stall.reason
    assert stall.seconds >= LEAST_SECONDS


async def test_all_that_several_are_awaited_for_is_looked_at(run_of):
    run = run_of({"near", "far"}, near=Trainer(AGENT, "far"), far=Trainer())
    assert (await run.pass_seconds(100)).worker == "far"


async def test_a_worker_that_has_not_reported_is_looked_at(run_of):
    run = run_of((), near=Trainer("far"), far=Trainer())
    run.window.done, run.window.unreported = 8, ("near", "far")
    assert (await run.pass_seconds(100)).worker == "far"


async def test_this_device_holds_a_step_up_where_nobody_owes_it_anything(run_of):
    run = run_of((), near=Trainer(AGENT))
    stall = await run.pass_seconds(100)
    assert (stall.worker, stall.reason) == (AGENT, "this device holds up step 7: it computes")


@pytest.mark.parametrize("awaited", [(GROUP,), ("far",)])
async def test_who_waits_for_others_of_a_group_or_for_one_that_is_away_is_not_blamed(run_of, awaited):
    run = run_of({"near"}, near=Trainer(*awaited), far=Trainer())
    run.trainers["far"].failure = UnreachableError("gone")
    assert await run.pass_seconds(10 * FIRST_SECONDS) is None


async def test_steps_that_took_long_may_take_ten_times_as_long(run_of):
    run = run_of({"near"}, near=Trainer(), step_seconds=20.0)
    assert await run.pass_seconds(LONGER * 20.0) is None
    assert await run.pass_seconds(EVERY_SECONDS + 2) is not None


async def test_a_first_step_may_take_as_long_as_a_call(run_of):
    run = run_of({"near"}, near=Trainer())
    run.window.first = run.window.settled
    assert await run.pass_seconds(FIRST_SECONDS) is None
    assert await run.pass_seconds(EVERY_SECONDS + 2) is not None


async def test_the_first_step_after_a_join_may_as_well(run_of):
    run = run_of({"near"}, near=Trainer())
    run.window.settled -= 1
    run.begin_watch(0.1)
    assert await run.pass_seconds(FIRST_SECONDS) is None


async def test_nothing_is_missed_while_nothing_has_begun(run_of):
    run = run_of((), near=Trainer())
    run.window.owed = None
    assert await run.pass_seconds(100 * FIRST_SECONDS) is None
    run.window.owed = 7
    assert await run.pass_seconds(LEAST_SECONDS - 1) is None, "the time of a pause is none of the step's"


async def test_pieces_and_bytes_here_are_progress_for_as_long_as_they_come(run_of):
    run = run_of({"near"}, near=Trainer())

    def carry():
        run.executor.progress += 1

    assert await run.pass_seconds(100 * FIRST_SECONDS, carry) is None
    assert await run.pass_seconds(LEAST_SECONDS + EVERY_SECONDS + 2) is not None


async def test_pieces_and_bytes_elsewhere_are_progress_and_bounded_because_they_are_told(run_of):
    run = run_of({"near"}, near=Trainer())

    def carry():
        run.trainers["near"].progress += 1

    assert await run.pass_seconds(LONGER * LEAST_SECONDS, carry) is None
    assert (await run.pass_seconds(EVERY_SECONDS + 2, carry)).worker == "near"


async def test_a_device_that_has_slept_blames_nobody(run_of):
    run = run_of({"near"}, near=Trainer(AGENT))
    assert await run.pass_seconds(2) is None
    run.seconds += 10 * FIRST_SECONDS
    assert await run.pass_seconds(LEAST_SECONDS - 1) is None
    assert await run.pass_seconds(EVERY_SECONDS + 2) is not None


async def test_a_step_ends_a_stall(run_of):
    run = run_of({"near"}, near=Trainer())
    assert await run.pass_seconds(LEAST_SECONDS + EVERY_SECONDS + 2) is not None
    run.step()
    assert await run.pass_seconds(LEAST_SECONDS) is None


async def test_a_trainer_that_is_silent_is_not_waited_for(run_of):
    run = run_of({"near"}, near=Trainer())

    async def say_nothing():
        run.seconds += ANSWER_SECONDS
        await asyncio.Event().wait()

    run.trainers["near"].remind = say_nothing
    assert await run.pass_seconds(LEAST_SECONDS + EVERY_SECONDS + 2) is None
