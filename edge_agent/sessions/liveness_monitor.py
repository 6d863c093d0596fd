"""Absences of trainers: work is given up when a trainer has been away for too long (trainer.replace_after_seconds), and
interrupted when another one stands in for it (trainer.stand_in_after_seconds).

While steps are done, no trainer is asked. If another trainer has dialled the absent one, this device's links show
nothing. Each trainer is therefore asked itself. One that answers is away, too, where it leaves other calls unanswered, or holds
a step up (`StepWatch`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from edge_agent.sessions.link_watch import LinkWatch
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import StandIns, StoodInError
from edge_agent.sessions.step_watch import Stall, StepWatch
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, StalledError, UnreachableError
from shared.placement import AGENT
from shared.runtime.run_unless_failed import run_unless_failed

_log = structlog.get_logger(__name__)
T = TypeVar("T")
LOOK_SECONDS = 0.5
"""Interval of looks for progress."""

QUIET_SECONDS = 2.0
"""Time without progress after which each trainer is asked. Where a call waits for a trainer, all are asked at once."""


class AwayTooLongError(IsthmusError):
    """An error that names trainers away for longer than the run waits for them."""

    def __init__(self, workers: Sequence[str]) -> None:
        super().__init__(f"away for longer than trainer.replace_after_seconds: {', '.join(workers)}")
        self.workers = workers


class Stalls(Protocol):
    """The run that is told of steps that are held up."""

    async def goes_on_without(self, worker: str) -> bool:
        """Tell whether the run has a checkpoint in which a worker has no blocks, so that it loses nothing but steps."""

    def note_stall(self, reason: str) -> None:
        """Note that no step boundary comes now, and why. Called again and again."""


class LivenessMonitor:
    """The watch over the trainers of one session. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        progress: Callable[[], object],
        may_rest: Callable[[], bool],
        stand_ins: StandIns,
        watch_steps: Callable[[], StepWatch],
        stalls: Stalls,
    ) -> None:
        """progress: a value that changes while all trainers with blocks are there, for example the last step that all
        have done.

        may_rest: True while no steps are expected, so that no link is missed. watch_steps: makes a watch for one task.
        """
        self._session = session
        self._progress = progress
        self._may_rest = may_rest
        self._stand_ins = stand_ins
        self._watch_steps = watch_steps
        self._stalls = stalls
        self._stalled: str | None = None
        """Reason of the stall of now; None where steps are done."""
        self._goes_on_without = False
        """True if the run has a checkpoint in which the worker that holds the step up has no blocks."""
        self._limits = {
            trainer.name: trainer.replace_after_seconds
            for trainer in session.experiment.config.all_trainers
            if trainer.replace_after_seconds is not None
        }
        self._away_since: dict[str, float] = {}
        """Time of the first unanswered question to each trainer, by time.monotonic."""

    async def watch_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work, and have other trainers stand in for those that may begin again. Raises AwayTooLongError in it when a
        trainer has been away for too long, and StoodInError when another one stands in for it.

        Raises UnreachableError when a link between two present trainers has been down for too long, and StalledError when a
        step is held up for too long and nobody can be left out.

        Before the first checkpoint of all workers, no absence is too long: the run cannot continue without the trainer.
        """
        absent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watch(absent))
        watching.add_done_callback(partial(_pass_on_failure, absent))
        try:
            return await run_unless_failed(work, absent)
        finally:
            watching.cancel()
            absent.cancel()
            self._end_stall()  # what follows begins another

    async def _watch(self, absent: "asyncio.Future[None]") -> None:
        before, links, progressed_seconds = self._progress(), LinkWatch(self._session), time.monotonic()
        steps = self._watch_steps()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, progressed = self._progress(), self._progress() != before
            if progressed:
                progressed_seconds = time.monotonic()
                self._session.members.stalled.difference_update(self._session.members.needed)
            if (down := await links.look(is_missed=not (progressed or self._may_rest()))) is not None:
                absent.set_exception(down)
                return
            if (held_up := await self._look_at(await steps.look())) is not None:
                absent.set_exception(held_up)
                return
            is_quiet = time.monotonic() - progressed_seconds >= QUIET_SECONDS
            is_missed = not progressed and (is_quiet or bool(self._session.retry.reasons))
            if not is_missed:
                self._stand_ins.forget()
            elif stood_in := await self._stand_ins.find():
                absent.set_exception(StoodInError(stood_in))
                return
            if progressed or self._session.stored.shared is None:
                self._away_since.clear()
                continue
            if not is_missed:
                continue
            needed = self._limits.keys() & self._session.members.needed
            self._away_since = {worker: since for worker, since in self._away_since.items() if worker in needed}
            await gathered(*(self._ask(worker, self._session.members[worker].client) for worker in needed))
            now_seconds = time.monotonic()
            too_long = [w for w, since in self._away_since.items() if now_seconds - since >= self._limits[w]]
            if too_long:
                absent.set_exception(AwayTooLongError(too_long))
                return

    async def _look_at(self, stall: Stall | None) -> IsthmusError | None:
        """Say who holds a step up. Return the error that ends the work, if it has to end."""
        if stall is None:
            self._end_stall()
            return None
        session, worker = self._session, stall.worker
        if stall.reason != self._stalled:
            self._end_stall()
            self._stalled = stall.reason
            _log.warning("no step is done", worker=worker, reason=stall.reason, seconds=round(stall.seconds, 1))
            session.retry.note_waiting(self, stall.reason)
            if worker not in (None, AGENT):
                session.members.stalled.add(worker)
                shared = session.stored.shared is not None
                self._goes_on_without = shared and await self._stalls.goes_on_without(worker)
        self._stalls.note_stall(stall.reason)
        if worker == AGENT:
            return None
        if worker is not None and session.stored.shared is not None:
            after_seconds = 0.0 if self._goes_on_without else self._limits.get(worker)
            if after_seconds is not None and stall.seconds >= after_seconds:
                return AwayTooLongError([worker])
        if stall.seconds >= stall.limit_seconds + self._patience_seconds(worker):
            return StalledError(f"{stall.reason}; no step was done for {stall.seconds:.0f} s")
        return None

    def _patience_seconds(self, worker: str | None) -> float:
        """Return for how long a run waits for a worker that holds a step up. None: for any of them."""
        trainers = [one for one in self._session.experiment.config.all_trainers if worker in (None, one.name)]
        return min(one.call_timeout_seconds if one.give_up_seconds is None else one.give_up_seconds for one in trainers)

    def _end_stall(self) -> None:
        """Steps are done again, or the work is over that waited for one."""
        if self._stalled is not None:
            self._stalled, self._goes_on_without = None, False
            self._session.retry.note_done(self)

    async def _ask(self, worker: str, client: TrainerClient) -> None:
        asked_seconds = time.monotonic()
        try:
            async with asyncio.timeout(self._limits[worker]):
                await client.check_serving()
        except (UnreachableError, TimeoutError):
            self._away_since.setdefault(worker, asked_seconds)
            return
        except IsthmusError:  # Any answer shows that it is there.
            pass
        if (unanswered_since := client.unanswered_since) is not None:
            self._away_since.setdefault(worker, unanswered_since)
        else:
            self._away_since.pop(worker, None)


def _pass_on_failure(absent: "asyncio.Future[None]", watching: "asyncio.Task[None]") -> None:
    """Have a defect of the watch end the work: without the watch, no absence would be noticed."""
    if not watching.cancelled() and (failure := watching.exception()) is not None and not absent.done():
        absent.set_exception(failure)
