"""The work of a run's decisions that takes longer than a look: searches, new times of a worker, and trainers that are back.

A changed device first gets one factor. If that does not fit, some of its times are measured during training, and all others
computed from them (measuring.py), unless the profile has times by samples. If the run continues without a trainer, and it
answers again, it is taken back where that is worth it.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from edge_agent.adaptation.measuring import Measuring, StepTimers
from edge_agent.planning import Decision, Engine
from edge_agent.planning.engine.returning import return_search
from edge_agent.training.deployer import Deployer
from edge_agent.training.training_run import TrainingRun
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered, meanwhile
from shared.errors import IsthmusError, PlanError

_log = structlog.get_logger(__name__)

ASK_SECONDS = 30.0
"""Interval of questions to trainers that were left out."""

SEARCHING_PART = 0.05
"""Part of the time that searches may take at most."""

Apply = Callable[[Deployer, Decision], None]


class Jobs:
    """The work of one run, on its event loop; what computes runs on other threads."""

    def __init__(self, engine: Engine, alone: asyncio.Lock, measuring: Measuring) -> None:
        """alone: held by the one that uses the engine."""
        self._engine = engine
        self._alone = alone
        self._looked = asyncio.Event()
        """Set after each look at the run."""
        self._next_search_seconds = -math.inf
        """Time before which no other search begins, by time.monotonic."""
        self._measuring = measuring

    def wake(self) -> None:
        """Look for work, because the engine has observed something."""
        self._looked.set()

    @asynccontextmanager
    async def running(self, run: TrainingRun, timers: StepTimers, apply: Apply) -> AsyncIterator[None]:
        """Do the work while the body runs. apply: has a decision carried out."""
        try:
            async with meanwhile(self._after_looks(timers)), meanwhile(self._ask_who_is_back(run, apply)):
                yield
        finally:
            await self._measuring.close()

    async def _after_looks(self, timers: StepTimers) -> None:
        while True:
            await self._looked.wait()
            self._looked.clear()
            await self.search()
            await self._measuring.go_on(timers)

    async def search(self) -> None:
        """Find the layouts that are worth weighing, where the engine wants that and searches have not taken too long."""
        begun = time.monotonic()
        if begun < self._next_search_seconds or (search := self._engine.next_search()) is None:
            return
        try:
            found = await asyncio.to_thread(search.run)
        except PlanError as nothing:
            _log.debug("no layouts found", reason=str(nothing))
            self._rest_after(time.monotonic() - begun)
            return
        searched_seconds = time.monotonic() - begun
        async with self._alone:  # others' work may have it for long, which is no work of a search
            begun = time.monotonic()
            await asyncio.to_thread(self._engine.weigh, search.question, found)
        self._rest_after(searched_seconds + time.monotonic() - begun)

    def _rest_after(self, worked_seconds: float) -> None:
        """Search no more until searches have taken their part of the time only."""
        self._next_search_seconds = time.monotonic() + worked_seconds * (1.0 / SEARCHING_PART - 1.0)

    async def _ask_who_is_back(self, run: TrainingRun, apply: Apply) -> None:
        """Ask those that were left out, but for those that answered all the time."""
        members = run.session.members
        while True:
            await asyncio.sleep(ASK_SECONDS)
            asked = [name for name in members.left_out if name not in members.stalled]
            answers = await gathered(*(_answers(members.client(name)) for name in asked))
            back = [name for name, answered in zip(asked, answers, strict=True) if answered]
            if back or self._engine.is_elsewhere:
                await self.take_back(run.deployer, back, apply)

    async def take_back(self, deployer: Deployer, back: Sequence[str], apply: Apply) -> None:
        """Take trainers back that answer again, if that is worth it, or leave a layout that the profile does not know."""
        engine = self._engine
        question, search = engine.question, return_search(engine.question, engine.conditions, back)
        if search is None or deployer.moving:
            return
        try:
            found = await asyncio.to_thread(search)
        except PlanError:
            return
        async with self._alone:
            if not deployer.moving and (decision := engine.propose_return(question, found)) is not None:
                _log.info("leaving the layout that recovery has chosen", trainers_back=back)
                apply(deployer, decision)


async def _answers(client: TrainerClient) -> bool:
    try:
        await client.check_serving()
    except IsthmusError:
        return False
    return True
