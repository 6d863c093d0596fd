"""Absences of trainers: work is given up when a trainer has been away for too long (trainer.replace_after_seconds), and
interrupted when another one stands in for it (trainer.stand_in_after_seconds).

While steps are done, no trainer is asked. If another trainer has dialled the absent one, this device's links show
nothing. Each trainer is therefore asked itself.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import StandIns, StoodInError
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, UnreachableError
from shared.placement import Link
from shared.runtime.run_unless_failed import run_unless_failed

T = TypeVar("T")
LOOK_SECONDS = 0.5
"""Interval of looks for progress."""

QUIET_SECONDS = 2.0
"""Time without progress after which each trainer is asked. Where a call waits for a trainer, all are asked at once."""

EVERY_SECONDS = 10.0
"""Interval of questions to the trainers while no step is done."""
LONGEST_SECONDS = 120.0
"""Longest time without a step for which a link may be down between trainers that answer. A network reroutes in less."""


class AwayTooLongError(IsthmusError):
    """An error that names trainers away for longer than the run waits for them."""

    def __init__(self, workers: Sequence[str]) -> None:
        super().__init__(f"away for longer than trainer.replace_after_seconds: {', '.join(workers)}")
        self.workers = workers


class LinkWatch:
    """Links between trainers that stay down although both trainers answer this device: no other process would report them.

    Of one session, for the time of one task. Used on the event loop.
    """

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._down_since: dict[Link, float] = {}
        """Time at which a link was first found down, by time.monotonic."""
        self._asked_seconds = time.monotonic()

    async def look(self, *, is_missed: bool) -> UnreachableError | None:
        """Return the error that ends the run, if there is one. is_missed: True if expected steps are not done; only
        then are trainers asked."""
        now_seconds = time.monotonic()
        if not is_missed:
            self._down_since.clear()
            self._asked_seconds = now_seconds
        if now_seconds - self._asked_seconds < EVERY_SECONDS:
            return None
        self._asked_seconds = now_seconds
        session = self._session
        wanted = links_between(session.state.plan)
        try:
            workers = {worker for link in wanted for worker in link}
            await gathered(*(session.members[worker].client.check_serving() for worker in workers))
            missing = await missing_links(session, wanted)
        except (IsthmusError, KeyError):  # A trainer is away, or left out: its absence has to end first.
            missing = {}
        self._down_since = {link: self._down_since.get(link, now_seconds) for link in missing}
        for link, since in self._down_since.items():
            if now_seconds - since >= LONGEST_SECONDS:
                return UnreachableError(f"{missing[link]}; no step was done for {now_seconds - since:.0f} s")
        return None


class LivenessMonitor:
    """The watch over the trainers of one session. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        progress: Callable[[], object],
        may_rest: Callable[[], bool],
        stand_ins: StandIns,
    ) -> None:
        """progress: a value that changes while all trainers with blocks are there, for example the last step that all
        have done.

        may_rest: True while no steps are expected, so that no link is missed.
        """
        self._session = session
        self._progress = progress
        self._may_rest = may_rest
        self._stand_ins = stand_ins
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

        Raises UnreachableError when a link between two present trainers has been down for too long.

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

    async def _watch(self, absent: "asyncio.Future[None]") -> None:
        before, links, progressed_seconds = self._progress(), LinkWatch(self._session), time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, progressed = self._progress(), self._progress() != before
            if progressed:
                progressed_seconds = time.monotonic()
            if (down := await links.look(is_missed=not (progressed or self._may_rest()))) is not None:
                absent.set_exception(down)
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

    async def _ask(self, worker: str, client: TrainerClient) -> None:
        asked_seconds = time.monotonic()
        try:
            async with asyncio.timeout(self._limits[worker]):
                await client.check_serving()
        except (UnreachableError, TimeoutError):
            self._away_since.setdefault(worker, asked_seconds)
        except IsthmusError:  # Any answer shows that it is there.
            self._away_since.pop(worker, None)
        else:
            self._away_since.pop(worker, None)


def _pass_on_failure(absent: "asyncio.Future[None]", watching: "asyncio.Task[None]") -> None:
    """Have a defect of the watch end the work: without the watch, no absence would be noticed."""
    if not watching.cancelled() and (failure := watching.exception()) is not None and not absent.done():
        absent.set_exception(failure)
