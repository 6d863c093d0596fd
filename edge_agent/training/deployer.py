"""Changes of a running session's placement: at the next step boundary, drained. All choosers use this.

What a worker refuses, whoever asked for it, leaves the run as it was: the chooser is told, the log and the status say it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from edge_agent.coordinator import Action, ChangeDone, ChangeFailed
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.membership import newcomers
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Tickets
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import HandedOver, Migrated, MigrationFailed
from edge_agent.training.placement_change import change_placement, prepare_change
from edge_agent.training.step_boundary import StepBoundary
from shared.errors import (
    IsthmusError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from shared.events import Emit
from shared.placement import Deployment, Placement

_log = structlog.get_logger(__name__)
AGAIN_SECONDS = 60.0
"""Time for which a refused placement is taken from nobody but an operator, because each attempt stops the run for a moment."""


@dataclass(slots=True)
class _Wish:
    """A requested placement."""

    placement: Placement
    by: Chooser
    give_up_seconds: float | None = None
    is_prepared: bool = False
    """True once the trainers that are to have their first blocks are members."""
    attempts: int = 0
    """Attempts to put it into force."""
    waiting: "list[asyncio.Future[Placement]]" = field(default_factory=list)
    """Callers that are told the outcome."""

    def came(self, placement: Placement) -> None:
        """Tell the callers that it is in force."""
        for waiting in self.waiting:
            if not waiting.done():  # its caller may have gone
                waiting.set_result(placement)

    def failed(self, failure: IsthmusError) -> None:
        """Tell the callers why it is not in force, and will not be."""
        for waiting in self.waiting:
            if not waiting.done():
                waiting.set_exception(failure)


class Deployer:
    """The changer of the placement. Of several requests the last counts, as `Chooser` says. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        device: DeviceWorker,
        boundary: StepBoundary,
        emit: Emit,
        may_change: Callable[[], bool],
        unprepared: asyncio.Event,
    ) -> None:
        """may_change: True if a request may come into force at the next boundary. Otherwise the boundary after it is soon.

        unprepared: set here when a request needs `prepare`.
        """
        self._session = session
        self._device = device
        self._boundary = boundary
        self._emit = emit
        self._may_change = may_change
        self._unprepared = unprepared
        self._wish: _Wish | None = None
        self._changing: _Wish | None = None
        """Request that is coming into force now."""
        self.pinned_trainer: str | None = None
        """The only trainer that may have blocks, by an operator's pin."""
        self._chosen = session.placement, Chooser.CONFIGURATION
        """The placement that came into force last, other than by a return to a checkpoint, and its chooser."""
        self.refusal = ""
        """Reason for which the last request was given up, a sentence; empty once another one has come into force."""
        self._refused: tuple[Placement, float] | None = None
        """The placement that a worker refused last, and the time of it, by time.monotonic."""

    @property
    def experiment(self) -> Experiment:
        """Return the experiment that is trained."""
        return self._session.experiment

    @property
    def chosen_by(self) -> Chooser:
        """Return the chooser of the placement in force."""
        placement, by = self._chosen
        return by if replace(self._session.placement, version=placement.version) == placement else Chooser.RECOVERY

    @property
    def placement(self) -> Placement:
        """Return the requested placement, or the one in force."""
        return self._session.placement if (last := self._wish or self._changing) is None else last.placement

    @property
    def deployment(self) -> Deployment:
        """Return its summary."""
        return self.experiment.deployment_of(self.placement)

    @property
    def deployment_in_force(self) -> Deployment:
        """Return the summary of the placement in force."""
        return self.experiment.deployment_of(self._session.placement)

    @property
    def moving(self) -> bool:
        """Tell whether blocks will move, or are moving."""
        tiles = self._session.placement.tiles
        return any(wish is not None and wish.placement.tiles != tiles for wish in (self._wish, self._changing))

    @property
    def wanted_edge_blocks(self) -> int | None:
        """Return the number of blocks here after the moves that are under way or requested; None without any."""
        return self.deployment.edge_blocks if self.moving else None

    @property
    def is_ready(self) -> bool:
        """Tell whether another placement is requested, and its trainers are prepared for it."""
        return self._wish is not None and self._is_prepared(self._wish)

    @property
    def is_due(self) -> bool:
        """Tell whether another placement will come into force, and may at this boundary."""
        return self.is_ready and self._may_change()

    @property
    def leaves_a_stopping_trainer(self) -> bool:
        """Tell whether the request is a handover from a trainer that is about to stop."""
        return self._wish is not None and self._wish.by is Chooser.DRAIN

    def want(self, placement: Placement, by: Chooser, give_up_seconds: float | None = None) -> bool:
        """Request a placement, in force after the one that comes into force now. Callers that wait for an earlier
        request are told.

        Returns False, and changes nothing, where a request of a higher chooser stands, or a worker has just refused this one.

        placement: valid and with its codecs, as `Experiment` makes it. give_up_seconds: when the blocks are still under
        way after so long, the placement in force stays.
        """
        base = self._session.placement if self._changing is None else self._changing.placement
        placement, before = replace(placement, version=base.version + 1), self._wish
        if (before is not None and by < before.by) or (by < Chooser.OPERATOR and self._is_refused(placement)):
            return False
        if before is not None and before.placement == placement:
            before.by, before.give_up_seconds = by, give_up_seconds
            return True
        self._wish = None if replace(placement, version=base.version) == base else _Wish(placement, by, give_up_seconds)
        if before is not None:
            before.failed(_superseded(placement))
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Have the request come into force at a boundary, or be prepared before."""
        if self.is_ready:
            self._boundary.request()
        elif self._wish is not None:
            self._unprepared.set()

    def _is_prepared(self, wish: _Wish) -> bool:
        session = self._session
        names = newcomers(session.placement, wish.placement)
        return not names or (wish.is_prepared and session.members.are_present(names))

    async def prepare(self) -> None:
        """Prepare the request beside training, as `prepare_change` does. One that cannot be is given up."""
        while (wish := self._wish) is not None and not self._is_prepared(wish):
            try:
                await prepare_change(self._session, wish.placement)
                wish.is_prepared = True
            except IsthmusError as failure:
                if self._wish is not wish:
                    continue  # another request has taken its place, and its callers know
                self._wish = None
                away = "a trainer that is to have blocks is away: " if isinstance(failure, UnreachableError) else ""
                self._give_up(wish, f"{away}{failure}")
        self._go_on()

    async def in_force(self) -> Placement:
        """Wait until the request is in force, and return its placement.

        Raises StoppedError if another request replaces it, or the run ends, and RefusedError if it is impossible.
        """
        if (last := self._wish or self._changing) is None:
            return self._session.placement
        came: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        last.waiting.append(came)
        return await came

    def follow_schedules(self, step: int) -> None:
        """Request the K and codecs of the configuration's schedules from this step on, on top of any waiting request."""
        if not self.experiment.scheduled_steps:
            return
        scheduled = self.experiment.scheduled_at(step, self.placement)
        if (wish := self._wish) is None:
            self.want(scheduled, Chooser.SCHEDULE)
        elif not self._is_refused(scheduled):  # it stays the request of its chooser, with its limit and its callers
            wish.placement = replace(scheduled, version=wish.placement.version)

    def want_nothing(self, reason: str) -> None:
        """Forget the request. reason: a sentence."""
        if (wish := self._wish) is not None:
            self._wish = None
            _log.warning("the change of placement is dropped", version=wish.placement.version, reason=reason)
            wish.failed(StoppedError(f"the placement does not come into force: {reason}"))

    @property
    def named(self) -> frozenset[str]:
        """Return the workers that the placement in force names, or one that is requested."""
        wishes = (wish.placement.workers for wish in (self._wish, self._changing) if wish is not None)
        return frozenset(self._session.placement.workers).union(*wishes)

    async def change_now(self, next_step: int) -> Tickets | None:
        """Put the request into force, with nothing in flight and no link up. Returns the trainers' new tickets.

        Returns None if the placement stays: a worker refuses the other one, or fails, or there is no request any more. Then
        all trainers have to be joined again. Where the coordinator says so, the request stands. Raises the IsthmusError that
        ends the run.
        """
        if (wish := self._wish) is None:
            return None
        self._wish = None
        # Another may have come into force since the request.
        wish.placement = replace(wish.placement, version=self._session.placement.version + 1)
        self._changing = wish
        try:
            return await self._change(wish, next_step)
        finally:
            self._changing = None

    async def _change(self, wish: _Wish, next_step: int) -> Tickets | None:
        before, tell = self._session.placement, self._session.coordinator.tell
        moves_blocks = wish.placement.tiles != before.tiles
        wish.attempts += 1
        try:
            tickets, seconds = await change_placement(
                self._session, self._device, wish.placement, next_step, wish.give_up_seconds
            )
        except TimeoutError:
            tell(ChangeFailed(None, wish.attempts))
            self._give_up(wish, f"the blocks were still under way after {wish.give_up_seconds:.1f} s")
            return None
        except IsthmusError as failure:
            match tell(ChangeFailed(failure, wish.attempts)):
                case Action.END:
                    wish.failed(StoppedError(f"the placement did not come into force: {failure}"))
                    raise
                case Action.ASK_AGAIN:
                    _log.warning("the placement waits until all trainers are joined again", reason=str(failure))
                    self._want_again(wish)
                case _:
                    self._refused = replace(wish.placement, version=0), time.monotonic()
                    self._give_up(wish, str(failure))
            return None
        except BaseException:
            wish.failed(StoppedError("the run ended before the placement came into force"))
            raise
        tell(ChangeDone())
        self._chosen = wish.placement, wish.by
        self.refusal, self._refused = "", None
        wish.came(wish.placement)
        if moves_blocks:
            self._emit(Migrated(seconds))
        if newcomers(before, wish.placement) and newcomers(wish.placement, before):
            self._emit(HandedOver(wish.by, seconds))
        return tickets

    def _want_again(self, wish: _Wish) -> None:
        if self._wish is None:
            self._wish = wish
        else:
            wish.failed(_superseded(self._wish.placement))

    def _is_refused(self, placement: Placement) -> bool:
        """Tell whether a worker has refused a placement a moment ago."""
        if self._refused is None:
            return False
        refused, at = self._refused
        return replace(placement, version=0) == refused and time.monotonic() - at < AGAIN_SECONDS

    def _give_up(self, wish: _Wish, reason: str) -> None:
        self.refusal = reason
        self._emit(MigrationFailed())
        _log.warning("the placement stays", version=self._session.placement.version, by=str(wish.by), reason=reason)
        wish.failed(RefusedError(f"the placement stays as it is: {reason}"))


def _superseded(by: Placement) -> StoppedError:
    return StoppedError(
        f"another placement was asked for before this one came into force: version {by.version} differs from it"
    )
