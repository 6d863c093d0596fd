"""Absences of trainers: the coordinator is told of each, and work is given up where the trainers have to be joined again
without one (trainer.replace_after_seconds), or with another in its place (trainer.stand_in_after_seconds).

While steps are done, no trainer is asked. If another trainer has dialled the absent one, this device's links show
nothing. Each trainer is therefore asked itself. One that answers is away, too, where it leaves other calls unanswered, or holds
a step up (`StepWatch`).
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from edge_agent.coordinator import Action, RunEvent, StepHeldUp, StoodInFor, TrainerSilent, TrainersParted
from edge_agent.sessions.link_watch import LinkWatch
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import StandIns
from edge_agent.sessions.step_watch import Stall, StepWatch
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, StalledError, UnreachableError
from shared.placement import AGENT

_log = structlog.get_logger(__name__)
T = TypeVar("T")
LOOK_SECONDS = 0.5
"""Interval of looks for progress."""

QUIET_SECONDS = 2.0
"""Time without progress after which each trainer is asked. Where a call waits for a trainer, all are asked at once."""


class _Found(NamedTuple):
    """An absence for which the trainers have to be joined again."""

    told: RunEvent
    trainers: Sequence[str]
    """Trainers that are left out; none where others stand in."""


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
            await asyncio.wait({working})
            self._end_stall()  # what follows begins another
        # Told once the work is over: what the work has told until then, as that all are joined, would undo it.
        if self._session.coordinator.tell(found.told) is Action.LEAVE_OUT:
            _log.warning("trainers away for too long; going on without them", trainers=found.trainers)
            self._session.members.leave_out(found.trainers)
        return None

    async def _watch(self) -> _Found:
        """Watch until the trainers have to be joined again. Returns what has to be told."""
        answer = self._session.coordinator.answer
        before, links, progressed_seconds = self._progress(), LinkWatch(self._session), time.monotonic()
        steps = self._watch_steps()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, progressed = self._progress(), self._progress() != before
            if progressed:
                progressed_seconds = time.monotonic()
                self._session.members.note_progress()
            down = await links.look(is_missed=not (progressed or self._may_rest()))
            if down is not None and answer(TrainersParted(down.seconds)) is Action.END:
                raise UnreachableError(f"{down.reason}; no step was done for {down.seconds:.0f} s")
            if (held_up := await self._look_at(await steps.look())) is not None:
                return held_up
            is_quiet = time.monotonic() - progressed_seconds >= QUIET_SECONDS
            is_missed = not progressed and (is_quiet or bool(self._session.retry.reasons))
            if not is_missed:
                self._stand_ins.forget()
            elif await self._stand_ins.find():
                return _Found(StoodInFor(), ())
            if progressed or self._session.stored.shared is None:
                self._away_since.clear()
                continue
            if not is_missed:
                continue
            needed = self._limits.keys() & self._session.members.needed
            self._away_since = {worker: since for worker, since in self._away_since.items() if worker in needed}
            await gathered(*(self._ask(worker, self._session.members[worker].client) for worker in needed))
            now_seconds = time.monotonic()
            silent = {
                worker: TrainerSilent(now_seconds - since, self._limits[worker])
                for worker, since in self._away_since.items()
            }
            if left_out := [worker for worker, told in silent.items() if answer(told) is Action.LEAVE_OUT]:
                return _Found(silent[left_out[0]], left_out)

    async def _look_at(self, stall: Stall | None) -> _Found | None:
        """Say who holds a step up. Returns it where a trainer is left out for that. Raises StalledError where the run has to
        end."""
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
                session.members.note_stall(worker)
                shared = session.stored.shared is not None
                self._goes_on_without = shared and await self._stalls.goes_on_without(worker)
        self._stalls.note_stall(stall.reason)
        told = StepHeldUp(
            is_device=worker == AGENT,
            is_trainer=worker not in (None, AGENT),
            seconds=stall.seconds,
            limit_seconds=stall.limit_seconds,
            patience_seconds=self._patience_seconds(worker),
            replace_after_seconds=None if worker is None else self._limits.get(worker),
            has_checkpoint=session.stored.shared is not None,
            is_elsewhere=self._goes_on_without,
        )
        action = session.coordinator.answer(told)
        if action is Action.END:
            raise StalledError(f"{stall.reason}; no step was done for {stall.seconds:.0f} s")
        return _Found(told, [worker]) if worker is not None and action is Action.LEAVE_OUT else None

    def _patience_seconds(self, worker: str | None) -> float:
        """Return for how long a run waits for a worker that holds a step up. None: for any of them. This device has no end."""
        trainers = [one for one in self._session.experiment.config.all_trainers if worker in (None, one.name)]
        patience = [
            one.call_timeout_seconds if one.give_up_seconds is None else one.give_up_seconds for one in trainers
        ]
        return min(patience, default=math.inf)

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
