"""When a run evaluates its model on the test set."""

import structlog

from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.listener import RunListener
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

_log = structlog.get_logger(__name__)


class Evaluations:
    """The evaluations of one run."""

    def __init__(self, session: OpenSession, listener: RunListener) -> None:
        self._session = session
        self._experiment = session.experiment
        self._listener = listener
        self.step = 0
        """The step before which the last one was made."""

    def due(self, step: int) -> bool:
        """Whether the weights before `step` are to be evaluated."""
        every = self._experiment.config.training.evaluate_every_epochs
        epochs, rest = divmod(step, self._experiment.loader.steps_per_epoch)
        regular = every > 0 and rest == 0 and epochs % every == 0
        last = step == self._experiment.steps
        return self._experiment.evaluation is not None and step != self.step and (last or regular)

    async def evaluate(self, deployment: Deployment, step: int) -> None:
        """Evaluate the weights before `step` through the cut."""
        assert self._experiment.evaluation is not None
        totals = await self._session.evaluate(self._experiment.evaluation, deployment)
        accuracy = totals.correct / totals.samples if totals.HasField("correct") else None
        self._listener.evaluated(accuracy, totals.loss)
        epoch = -(-step // self._experiment.loader.steps_per_epoch)
        _log.info("evaluated", epoch=epoch, loss=round(totals.loss, 4), accuracy=accuracy)
        self.step = step
