"""The way back to training: all trainers are joined again, at the beginning and after every failure that can be mended.

A trainer that stays away for too long is left out, and one that stands in for another gets its work.
"""

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from edge_agent.experiment.building import trainers_with_blocks
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.liveness_monitor import AwayTooLongError, LivenessMonitor
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import StandIns, StoodInError
from edge_agent.sessions.step_watch import StepWatch
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Replaced, StoodIn
from edge_agent.training.failure_budget import FailureBudget, can_be_mended, is_refusal
from edge_agent.training.recovery import Recovery, Rejoined, Restored, placement_to_go_on_with
from shared.errors import ConfigError, DataError, GoneError, IsthmusError, ProtocolError, SessionLostError
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
        self._budget = FailureBudget()
        self._stood_in: dict[str, str] = {}
        """Stand-ins that were told of; see `Members.stand_ins`."""
        self.liveness = LivenessMonitor(
            session,
            done_step,
            may_rest,
            StandIns(session, self._may_be_stood_in_for),
            lambda: StepWatch(session, device.placed, step_seconds),
            self,
        )

    async def recover(self, failure: IsthmusError | None, *, is_whole: bool) -> Rejoined | Restored:
        """Continue after `failure`. It is None at the beginning, and if a trainer stops or is left out.

        is_whole: True if training can continue from memory. If a trainer has refused a step and the session is gone
        after that, raises the refusal, because its reason can be fixed. After any other failure, raises a GoneError
        with the failure as its cause.
        """
        while True:
            if failure is not None:
                if (
                    self._worker.executor.has_failed
                    or not can_be_mended(failure)
                    or self._session.retry.give_up_seconds == 0
                ):
                    raise failure
                self._budget.count(failure, self._done_step(), self._worker.executor.window.begun)
                _log.warning("the links have ended; joining again", reason=str(failure))
                await self._budget.wait(self._done_step())
            try:
                return await self.rejoin(is_whole=is_whole)
            except (ProtocolError, SessionLostError) as again:
                failure = again
            except GoneError as gone:
                if failure is None:
                    raise
                if is_refusal(failure):
                    raise failure from None
                raise gone from failure

    async def rejoin(self, *, is_whole: bool) -> Rejoined | Restored:
        """Join the trainers again. Those that stay away for too long are left out from then on."""
        session, recorded = self._session, self._session.stored.record.left_out
        while True:
            attempts = session.retry.run(partial(self._recovery.join_or_go_back, is_whole=is_whole))
            try:
                joined = await self.liveness.watch_over(attempts)
            except AwayTooLongError as absent:
                self.leave_out(absent.workers)
                is_whole = False
                continue
            except StoodInError:
                continue
            left_out = session.members.left_out.keys()
            if left_out != set(recorded):
                await session.threads.disk.run(session.stored.set_left_out, left_out)
            if replaced := sorted(left_out - set(recorded)):
                self._deployer.want_nothing(f"other workers do the work of {', '.join(replaced)} now")
                self._emit(Replaced(replaced))
                _log.info("trainers replaced", trainers=replaced, version=session.placement.version)
            self._place_stand_ins()
            return joined

    def leave_out(self, trainers: Sequence[str]) -> None:
        """Continue without these trainers, once the others are joined again."""
        _log.warning("trainers away for too long; going on without them", trainers=trainers)
        self._session.members.leave_out(trainers)

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

    async def goes_on_without(self, worker: str) -> bool:
        """Answer as `Stalls` says."""
        session = self._session
        newest = await session.threads.disk.run(placement_to_go_on_with, session.stored, session.experiment)
        return not held_blocks(newest, worker)

    def note_stall(self, reason: str) -> None:
        """Have whoever waits for another placement know that no boundary comes."""
        self._deployer.want_nothing(reason)

    def _may_be_stood_in_for(self, name: str) -> bool:
        """Tell whether another trainer may get the work of a worker that is away, in the middle of a step."""
        return not self._deployer.is_changing and self._recovery.may_begin_again(name)
