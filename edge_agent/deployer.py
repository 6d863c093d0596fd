"""Changes the deployment of a running session: K and codecs with the next batch, the cut as soon as nothing is in flight.

The decision engine and an operator both go through here.
"""

from collections.abc import Callable

import structlog

from edge_agent.migration import migrate
from edge_agent.pipeline import Pipeline
from edge_agent.session import EdgeSession
from shared.errors import IsthmusError
from shared.model.build import check_cut
from shared.model.chain import Chain
from shared.model.stage import Stage
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

_log = structlog.get_logger(__name__)


class Deployer:
    """Called on the event loop."""

    def __init__(self, pipeline: Pipeline, chain: Chain, stage: Stage, on_failure: Callable[[], None]) -> None:
        """on_failure: told of every move that failed and left the old cut."""
        self._on_failure = on_failure
        self._pipeline = pipeline
        self._chain = chain
        self._stage = stage
        self._wanted_cut: int | None = None

    @property
    def deployment(self) -> Deployment:
        """What holds for the next batch."""
        return self._pipeline.deployment

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs; nothing is drained. Raises ConfigError for a codec that is not there."""
        self._pipeline.change(staleness=staleness, codec=codec, downlink_codec=downlink_codec)

    def move(self, cut: int) -> None:
        """Move the cut once the batches in flight are settled. Raises ModelError for a cut out of range."""
        check_cut(cut, self._chain)
        self._wanted_cut = cut
        self._pipeline.drain()

    async def settle(self, session: EdgeSession, next_step: int) -> float | None:
        """Do what `move` asked for, with nothing in flight.

        Returns the seconds that it took, None when nothing was to do or when it failed and both sides are as they were.
        Raises IsthmusError when what the trainer holds cannot be found out or is not what it was.
        """
        wanted, self._wanted_cut = self._wanted_cut, None
        old = self._pipeline.announced
        if wanted is None or wanted == old.cut:
            return None
        new = Deployment()
        new.CopyFrom(self._pipeline.deployment)
        new.epoch, new.cut = new.epoch + 1, wanted
        try:
            seconds = await migrate(session, self._chain, self._stage, self._pipeline.workers, next_step, old, new)
        except IsthmusError as failure:
            if await session.deployment() != old:
                raise
            self._on_failure()
            _log.warning("the cut stays", cut=old.cut, wanted=wanted, reason=str(failure))
            return None
        self._pipeline.redeploy(new)
        return seconds
