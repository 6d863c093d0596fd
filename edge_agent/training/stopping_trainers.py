"""Trainers that are about to stop: each is left by a handover to a candidate that would take over, where there is one."""

import asyncio
from contextlib import aclosing

import structlog

from edge_agent.coordinator import Action, TrainerStopping
from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import successors
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.step_boundary import StepBoundary
from shared.errors import ConfigError, DataError
from shared.events.worker import WorkerStops
from shared.placement import AGENT

_log = structlog.get_logger(__name__)


class StoppingTrainers:
    """The trainers of one session that are about to stop. Used on the event loop."""

    def __init__(self, session: OpenSession, deployer: Deployer, boundary: StepBoundary, due: asyncio.Event) -> None:
        """due: set when a trainer is to be left."""
        self._session = session
        self._deployer = deployer
        self._boundary = boundary
        self._due = due
        self._stopping: set[str] = set()
        self.must_stop = False
        """True if a trainer is about to stop, nobody takes over, and the run has not reacted yet."""

    @property
    def may_be_gone(self) -> bool:
        """Tell whether one that has blocks may be gone before it is left."""
        return bool(self._stopping) or self.must_stop or self._deployer.leaves_a_stopping_trainer

    def note(self, event: WorkerStops) -> None:
        """Note that a trainer is about to stop."""
        if event.worker != AGENT:
            _log.info("a trainer is about to stop", trainer=event.worker)
            self._stopping.add(event.worker)
            self._due.set()

    async def hand_over(self) -> None:
        """Request handovers from them. The coordinator says what follows where that fails."""
        while self._stopping:
            name = next(iter(self._stopping))
            has_blocks = self._has_blocks(name)
            told = TrainerStopping(has_blocks, has_blocks and await self._is_handed_over(name))
            if self._session.coordinator.tell(told) is Action.STOP:
                self.must_stop = True
                self._boundary.request()
            self._stopping.discard(name)  # only now: this call may be cut off, and made again

    def _has_blocks(self, name: str) -> bool:
        return name in trainers_with_blocks(self._deployer.placement)

    async def _is_handed_over(self, name: str) -> bool:
        """Request that another trainer gets all that this one has. Returns False if none can."""
        experiment = self._session.experiment
        holding = trainers_with_blocks(self._deployer.placement)
        others = [trainer.name for trainer in experiment.config.all_trainers if trainer.name not in holding]
        async with aclosing(successors(self._session, others)) as would:
            async for successor in would:
                try:
                    wanted = experiment.handed_over(self._deployer.placement, successor, name)
                except (ConfigError, DataError) as refusal:
                    _log.warning("a candidate may not take over", trainer=successor, reason=str(refusal))
                    continue
                self._deployer.want(wanted, Chooser.DRAIN)
                await self._deployer.prepare()
                if not self._has_blocks(name):
                    return True
        return False
