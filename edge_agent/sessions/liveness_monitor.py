"""Absences of trainers: the coordinator is told of each, and work is given up where the trainers have to be joined again
without one (trainer.replace_after_seconds), or with another in its place (trainer.stand_in_after_seconds).

While steps are done, no trainer is asked. One is away that does not answer (`Silence`), or holds a step up (`StepWatch`).
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog

from edge_agent.coordinator import Action, RunEvent, StepHeldUp, StoodInFor, TrainerSilent, TrainersParted
from edge_agent.sessions.links_between import LinkWatch
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.silence import Silence
from edge_agent.sessions.stand_ins import find_stand_in
from edge_agent.sessions.step_watch import Stall, StepWatch
from shared.errors import StalledError, UnreachableError
from shared.placement import AGENT

_log = structlog.get_logger(__name__)
T = TypeVar("T")
LOOK_SECONDS = 0.5
"""Interval of looks for progress."""

QUIET_SECONDS = 2.0
"""Time without progress after which each trainer is asked. Where a call waits for a trainer, all are asked at once."""


class _Away(NamedTuple):
    """A trainer that does not answer, or holds a step up."""

    trainer: str
    told: RunEvent


class _Found(NamedTuple):
    """An absence for which the trainers have to be joined again."""

    told: RunEvent
    trainers: Sequence[str]
    """Trainers that are left out; none where others stand in."""


class LivenessMonitor:
    """The watch over the trainers of one session. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        progress: Callable[[], object],
        may_rest: Callable[[], bool],
        may_begin_again: Callable[[str], bool],
        watch_steps: Callable[[], StepWatch],
        goes_on_without: Callable[[str], Awaitable[bool]],
        note_stall: Callable[[str], None],
    ) -> None:
        """progress: a value that changes while all trainers with blocks are there, for example the last step that all
        have done.

        may_rest: True while no steps are expected, so that no link is missed. may_begin_again: tells whether a worker has no
        state to lose, so that another one may stand in for it. watch_steps: makes a watch for one task.

        goes_on_without: tells whether the run has a checkpoint in which a worker has no blocks, so that it loses nothing but
        steps. note_stall: told again and again why no step boundary comes now.
        """
        self._session = session
        self._progress = progress
        self._may_rest = may_rest
        self._may_begin_again = may_begin_again
        self._watch_steps = watch_steps
        self._goes_on_without = goes_on_without
        self._note_stall = note_stall
        self._stalled: str | None = None
        """Reason of the stall of now; None where steps are done."""
        self._is_elsewhere = False
        """True if the run has a checkpoint in which the worker that holds the step up has no blocks."""
        self._configured = {trainer.name: trainer for trainer in session.experiment.config.all_trainers}
        self._silence = Silence(session.members)

    async def watch_over(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do some work, and have other trainers stand in for those that may begin again. Returns None where it is given up,
        because the trainers have to be joined again: without those that have been away for too long, or with a stand-in.

        Raises UnreachableError when a link between two present trainers has been down for too long, and StalledError when a
        step is held up for too long and nobody can be left out. A defect of the watch ends the work, too: without the watch, no
        absence would be noticed.

        Before the first checkpoint of all workers, no absence is too long: the run cannot continue without the trainer.
        """
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                return await working
            found = watching.result()
        finally:
            watching.cancel()
            working.cancel()
            await asyncio.wait({working, watching})
            self._silence.end()
            self._end_stall()  # what follows begins another
        # Told once the work is over: what the work has told until then, as that all are joined, would undo it.
        if self._session.coordinator.tell(found.told) is Action.LEAVE_OUT:
            _log.warning("trainers away for too long; going on without them", trainers=found.trainers)
            self._session.members.leave_out(found.trainers)
        return None

    async def _watch(self) -> _Found:
        """Watch until the trainers have to be joined again. Returns what has to be told."""
        before, links, progressed_seconds = self._progress(), LinkWatch(self._session), time.monotonic()
        steps = self._watch_steps()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, progressed = self._progress(), self._progress() != before
            if progressed:
                progressed_seconds = time.monotonic()
                self._session.members.note_progress()
                self._silence.forget()
            down = await links.look(is_missed=not (progressed or self._may_rest()))
            if down is not None:
                seconds, reason = down
                if self._session.coordinator.answer(TrainersParted(seconds)) is Action.END:
                    raise UnreachableError(f"{reason}; no step was done for {seconds:.0f} s")
            away = await self._stalled_by(await steps.look())
            is_quiet = time.monotonic() - progressed_seconds >= QUIET_SECONDS
            if not progressed and (is_quiet or self._session.retry.reasons):
                away += await self._silent()
            if (found := await self._go_on_without(away)) is not None:
                return found

    async def _silent(self) -> list[_Away]:
        """Ask the trainers of whose absence something may follow. Returns what there is to tell of those that are away."""
        asked = {
            name: trainer
            for name, trainer in self._configured.items()
            if name in self._session.members.needed
            and (trainer.replace_after_seconds is not None or self._may_begin_again(name))
        }
        self._silence.forget(but=asked)
        return [
            _Away(
                name,
                TrainerSilent(
                    seconds=seconds,
                    may_begin_again=self._may_begin_again(name),
                    stand_in_after_seconds=asked[name].stand_in_after_seconds,
                    replace_after_seconds=asked[name].replace_after_seconds,
                    has_checkpoint=self._session.stored.shared is not None,
                ),
            )
            for name, seconds in (await self._silence.ask(asked)).items()
        ]

    async def _go_on_without(self, away: Sequence[_Away]) -> _Found | None:
        """Find out without which trainers the run goes on. None: it waits for all."""
        answers = [(one, self._session.coordinator.answer(one.told)) for one in away]
        if left_out := [one for one, answer in answers if answer is Action.LEAVE_OUT]:
            return _Found(left_out[0].told, sorted({one.trainer for one in left_out}))
        left = dict.fromkeys(one.trainer for one, answer in answers if answer is Action.STAND_IN)
        if any([await find_stand_in(self._session, name, self._silence) for name in left]):
            return _Found(StoodInFor(), ())
        return None

    async def _stalled_by(self, stall: Stall | None) -> list[_Away]:
        """Say who holds a step up. Returns what there is to tell of a trainer. Raises StalledError where the run has to end."""
        if stall is None:
            self._end_stall()
            return []
        session, worker = self._session, stall.worker
        trainer = None if worker is None else self._configured.get(worker)
        if stall.reason != self._stalled:
            self._end_stall()
            self._stalled = stall.reason
            _log.warning("no step is done", worker=worker, reason=stall.reason, seconds=round(stall.seconds, 1))
            session.retry.note_waiting(self, stall.reason)
            if trainer is not None:
                session.members.note_stall(trainer.name)
                shared = session.stored.shared is not None
                self._is_elsewhere = shared and await self._goes_on_without(trainer.name)
        self._note_stall(stall.reason)
        told = StepHeldUp(
            is_device=worker == AGENT,
            is_trainer=trainer is not None,
            may_begin_again=trainer is not None and self._may_begin_again(trainer.name),
            seconds=stall.seconds,
            limit_seconds=stall.limit_seconds,
            patience_seconds=self._patience_seconds(worker),
            replace_after_seconds=None if trainer is None else trainer.replace_after_seconds,
            has_checkpoint=session.stored.shared is not None,
            is_elsewhere=self._is_elsewhere,
        )
        if session.coordinator.answer(told) is Action.END:
            raise StalledError(f"{stall.reason}; no step was done for {stall.seconds:.0f} s")
        return [] if trainer is None else [_Away(trainer.name, told)]

    def _patience_seconds(self, worker: str | None) -> float:
        """Return for how long a run waits for a worker that holds a step up. None: for any of them. This device has no end."""
        trainers = [one for name, one in self._configured.items() if worker in (None, name)]
        patience = [
            one.call_timeout_seconds if one.give_up_seconds is None else one.give_up_seconds for one in trainers
        ]
        return min(patience, default=math.inf)

    def _end_stall(self) -> None:
        """Steps are done again, or the work is over that waited for one."""
        if self._stalled is not None:
            self._stalled, self._is_elsewhere = None, False
            self._session.retry.note_done(self)
