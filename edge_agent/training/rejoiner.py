"""The way back to training: all trainers are joined again, where the coordinator says so.

A trainer that is left out is recorded, and one that stands in for another gets its work.
"""

from collections.abc import Callable

import structlog

from edge_agent.coordinator import Action, WorkFailed
from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.liveness_monitor import LivenessMonitor
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.step_watch import StepWatch
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Replaced, StoodIn
from edge_agent.training.recovery import Recovery, Rejoined, Restored, placement_to_go_on_with
from shared.client.retry import Spacing
from shared.errors import ConfigError, DataError, IsthmusError
from shared.events import Emit
from shared.placement import held_blocks

_log = structlog.get_logger(__name__)


class Rejoiner:
    """The joins of one session's trainers, and the watch over them. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        device: DeviceWorker,
        deployer: Deployer,
        emit: Emit,
        done_step: Callable[[], int],
        may_rest: Callable[[], bool],
        step_seconds: Callable[[], float | None],
    ) -> None:
        """done_step: the first step that some worker has not done. may_rest: True while no steps are expected. step_seconds: of
        a step of late; None where nothing is known."""
        self._session = session
        self._worker = device.placed
        self._deployer = deployer
        self._emit = emit
        self._done_step = done_step
        self._recovery = Recovery(session, device)
        self._spacing = Spacing()
        self._stood_in: dict[str, str] = {}
        """Stand-ins that were told of; see `Membership.stand_ins`."""
        self.liveness = LivenessMonitor(
            session,
            done_step,
            may_rest,
            self._recovery.may_begin_again,
            lambda: StepWatch(session, device.placed, step_seconds),
            self._goes_on_without,
            deployer.want_nothing,
        )

    async def join(self) -> Rejoined | Restored:
        """Join the trainers, again after every failure that the run survives. Raises what the run ends with."""
        while True:
            try:
                attempts = self._session.retry.run(self._recovery.join_or_go_back)
                if (joined := await self.liveness.watch_over(attempts)) is not None:
                    break
            except IsthmusError as failure:
                await self.mend(failure)
        session, recorded = self._session, self._session.stored.record.left_out
        left_out = {*session.members.left_out}
        if left_out != set(recorded):
            await session.threads.disk.run(session.stored.set_left_out, left_out)
        if replaced := sorted(left_out - set(recorded)):
            self._deployer.want_nothing(f"other workers do the work of {', '.join(replaced)} now")
            self._emit(Replaced(replaced))
            _log.info("trainers replaced", trainers=replaced, version=session.placement.version)
        self._place_stand_ins()
        return joined

    async def mend(self, failure: IsthmusError) -> None:
        """Wait until the trainers may be joined again after a failure. Raises what the run ends with, if it ends."""
        executor, coordinator = self._worker.executor, self._session.coordinator
        first, done_step = coordinator.state.mending, self._done_step()
        match coordinator.tell(WorkFailed(failure, executor.has_failed, done_step, executor.window.begun)):
            case Action.RETRY:
                _log.warning("the links have ended; joining again", reason=str(failure))
                await self._spacing.wait(done_step)
            case Action.END_BY_FIRST if first is not None:
                raise first from None
            case _:
                raise failure

    def _place_stand_ins(self) -> None:
        """Request that trainers that stand in for others have their work by their own names, from the next boundary on."""
        session = self._session
        holding = trainers_with_blocks(session.placement)
        stand_ins = {
            name: other for name, other in session.members.stand_ins.items() if name in holding and name != other
        }
        placed = session.placement
        for name, other in stand_ins.items():
            try:
                placed = session.experiment.handed_over(placed, other, name)
            except (ConfigError, DataError) as refusal:  # a checkpoint may have given the other one blocks of its own
                _log.warning("a stand-in keeps its work by another name", trainer=other, reason=str(refusal))
        if placed != session.placement:
            self._deployer.want(placed, Chooser.RECOVERY)
        if fresh := stand_ins.items() - self._stood_in.items():
            self._emit(StoodIn(dict(fresh)))
        self._stood_in = stand_ins

    async def _goes_on_without(self, worker: str) -> bool:
        session = self._session
        newest = await session.threads.disk.run(placement_to_go_on_with, session.stored, session.experiment)
        return not held_blocks(newest, worker)
