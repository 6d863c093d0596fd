"""Steps that are not done although everybody answers: which worker holds a step up, and for how long.

A GPU that hangs answers every call. So each trainer is asked what it waits for, once no step was done for longer than steps
take. Pieces of work and bytes on links are progress, and steps are missed only while one has begun.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from edge_agent.sessions.open_session import OpenSession
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError
from shared.placement import AGENT, GROUP
from shared.runtime.placed_worker import PlacedWorker

EVERY_SECONDS = 10.0
"""Longest interval of questions to the trainers while no step is done."""
ANSWER_SECONDS = 5.0
"""Time in which a trainer answers what it waits for. One that does not is away, which is found out elsewhere."""
LONGEST_LOOK_SECONDS = 15.0
"""Time between two looks after which this process has slept: what did not come meanwhile is nobody's fault."""
LONGER = 10.0
"""Factor by which a step without progress may take longer than those before it, and by which it may take longer still where
trainers alone say that there is progress."""


class Stall(NamedTuple):
    """A step that is not done."""

    worker: str | None
    """The worker that holds it up; None where trainers say that they wait for each other."""
    reason: str
    """A sentence that names who is waited for."""
    seconds: float
    """Time without progress."""
    limit_seconds: float
    """Time after which that is a stall."""


class _Told(NamedTuple):
    """The answer of a trainer."""

    next_step: int
    progress: int
    awaited: frozenset[str]


class StepWatch:
    """The watch over the steps of one session, for the time of one task. Used on the event loop."""

    def __init__(self, session: OpenSession, worker: PlacedWorker, step_seconds: Callable[[], float | None]) -> None:
        """worker: of this device. step_seconds: the time of a step of late; None where none is known."""
        self._session = session
        self._worker = worker
        self._step_seconds = step_seconds
        self._first_step = worker.executor.window.settled
        """Step that was next as the watch began: it may take as long as a first one."""
        self._own: object = None
        self._told: dict[str, _Told | None] = {}
        self._since = self._own_since = self._asked_seconds = self._looked_seconds = -math.inf
        """Times by time.monotonic: of the last progress of any worker, of the last that this device has seen itself, of the
        last questions, and of the last look."""

    @property
    def limit_seconds(self) -> float:
        """Return the time without progress after which a step is held up."""
        members, window = self._session.members, self._worker.executor.window
        trainers = [one for one in self._session.experiment.config.all_trainers if one.name in members.needed]
        least = max((trainer.no_step_seconds for trainer in trainers), default=0.0)
        recent = self._step_seconds()
        if window.settled <= max(window.first, self._first_step) or recent is None:
            return max([least, *(trainer.call_timeout_seconds for trainer in trainers)])
        return max(least, LONGER * recent)

    async def look(self) -> Stall | None:
        """Return what holds a step up, for as long as it does."""
        executor, now_seconds = self._worker.executor, time.monotonic()
        own = executor.window, executor.window.settled, executor.progress
        slept = now_seconds - self._looked_seconds > LONGEST_LOOK_SECONDS
        self._looked_seconds = now_seconds
        if executor.window.owed is None or own != self._own or slept:
            self._own, self._since, self._own_since = own, now_seconds, now_seconds
            return None
        limit_seconds = self.limit_seconds
        if now_seconds - self._asked_seconds >= min(EVERY_SECONDS, limit_seconds / 4):
            self._asked_seconds = now_seconds
            before, self._told = self._told, await self._ask()
            if self._told != before:
                self._since = now_seconds
        seconds = now_seconds - self._since
        if seconds < limit_seconds:
            seconds = now_seconds - self._own_since
            if seconds < LONGER * limit_seconds:
                return None
        held_up = self._held_up()
        return None if held_up is None else Stall(*held_up, seconds, limit_seconds)

    async def _ask(self) -> dict[str, _Told | None]:
        """Ask the trainers with a part in the placement. None where one does not say."""
        members, plan = self._session.members, self._worker.executor.window.plan
        names = [name for name in members if plan.program(name)]

        async def ask(name: str) -> _Told | None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await members[name].remind()
            except (IsthmusError, TimeoutError):
                return None
            return _Told(answer.next_step, answer.progress, frozenset(answer.awaited) & {AGENT, GROUP, *names})

        return dict(zip(names, await gathered(*map(ask, names)), strict=True))

    def _held_up(self) -> tuple[str | None, str] | None:
        """Return the worker that holds the step up, and the sentence; None where that is known to be nobody of this run.

        Whoever waits for another one is not it, from this device on. One that waits for this device alone, which has sent all
        that it has, is.
        """
        executor = self._worker.executor
        window, step = executor.window, executor.window.settled
        awaited = executor.awaited if window.done <= step else frozenset(window.unreported)
        if not awaited:
            return AGENT, f"this device holds up step {step}: it computes"
        asked, left, waits = {AGENT}, sorted(awaited), dict[str, frozenset[str]]()
        while left:
            if (name := left.pop()) in asked:
                continue
            asked.add(name)
            if (told := self._told.get(name)) is None or GROUP in told.awaited:
                return None  # it is away, or others of its group are waited for
            if not told.awaited:
                return name, f"trainer {name!r} holds up step {step}: it answers, has what it needs, and does nothing"
            waits[name] = told.awaited
            left += sorted(told.awaited)
        for name, others in waits.items():
            if AGENT in others:
                return name, f"trainer {name!r} holds up step {step}: it says that it waits for what it was sent"
        named = ", ".join(f"{name!r} for {' and '.join(map(repr, sorted(others)))}" for name, others in waits.items())
        return None, f"step {step} is held up: trainers say that they wait, {named}"
