"""Changes the deployment of a running session: K and codecs with the next batch, the cut as soon as nothing is in flight.

The decision engine and an operator both go through here.
"""

import structlog

from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.listener import RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.migration import migrate
from edge_agent.training.step_boundary import StepBoundary
from shared.errors import IsthmusError
from shared.model.build import check_cut
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

_log = structlog.get_logger(__name__)


class Deployer:
    """Changes what an engine or an operator asks for. Used on the event loop."""

    def __init__(
        self, session: OpenSession, live: LiveDeployment, boundary: StepBoundary, listener: RunListener
    ) -> None:
        self._session = session
        self._live = live
        self._boundary = boundary
        self._listener = listener
        self._wanted_cut: int | None = None
        self._give_up_seconds: float | None = None
        self._is_moving = False
        self._under_way: int | None = None

    @property
    def deployment(self) -> Deployment:
        """What the next batch is started under."""
        return self._live.now

    @property
    def moving(self) -> bool:
        """Whether a move was asked for and is not done or given up."""
        return self._is_moving or self._wanted_cut is not None

    @property
    def moving_to(self) -> int | None:
        """The cut that is being moved to, or that waits to be; None where none is."""
        return self._under_way if self._wanted_cut is None else self._wanted_cut

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs; nothing is drained. Raises ConfigError for a codec that is not there."""
        self._live.change(staleness=staleness, codec=codec, downlink_codec=downlink_codec)

    def move(self, cut: int, give_up_seconds: float | None = None) -> None:
        """Move the cut once the batches in flight are settled. Raises ModelError for a cut out of range.

        give_up_seconds: when the blocks are still under way after so long, the cut stays.
        """
        check_cut(cut, self._session.experiment.chain)
        self._wanted_cut, self._give_up_seconds = cut, give_up_seconds
        self._boundary.request()

    async def move_if_requested(self, next_step: int) -> bool:
        """Make the move that was requested, if any, with nothing in flight. Returns whether the cut has changed.

        The cut stays where nothing was to do, or where the move failed and both sides are as before. Raises IsthmusError
        when nobody can tell what the trainer holds, or when it is not what it was.
        """
        self._is_moving = True
        try:
            return await self._move_now(next_step)
        finally:
            self._is_moving, self._under_way = False, None

    async def _move_now(self, next_step: int) -> bool:
        wanted, self._wanted_cut = self._wanted_cut, None
        old = self._live.in_force
        if wanted is None or wanted == old.cut:
            return False
        self._under_way = wanted
        new = Deployment()
        new.CopyFrom(self._live.now)
        new.version, new.cut = new.version + 1, wanted
        try:
            seconds = await migrate(self._session, next_step, old, new, self._give_up_seconds)
        except IsthmusError as failure:
            try:
                unchanged = await self._session.deployment() == old
            except IsthmusError:
                self._wanted_cut = wanted  # when it is known again where both sides are
                raise
            if not unchanged:
                raise
            self._listener.migration_failed()
            _log.warning("the cut stays", cut=old.cut, wanted=wanted, reason=str(failure))
            return False
        self._live.redeploy(new)
        self._listener.migrated(seconds)
        return True
