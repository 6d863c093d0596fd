"""Evaluates the model of a run on the test set whenever that is due."""

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
        self.evaluated_step = 0
        """The step that came next when the model was evaluated last."""

    def due(self, step: int) -> bool:
        """Whether the model is to be evaluated now, before `step`."""
        every = self._experiment.config.training.evaluate_every_epochs
        epochs, rest = divmod(step, self._experiment.loader.steps_per_epoch)
        regular = every > 0 and rest == 0 and epochs % every == 0
        last = step == self._experiment.steps
        return self._experiment.evaluation is not None and step != self.evaluated_step and (last or regular)

    async def evaluate(self, deployment: Deployment, step: int) -> None:
        """Evaluate the model through the cut, before `step` and with nothing in flight."""
        assert self._experiment.evaluation is not None
        totals = await self._session.evaluate(self._experiment.evaluation, deployment)
        accuracy = totals.correct / totals.samples if totals.HasField("correct") else None
        self._listener.evaluated(accuracy, totals.loss)
        epoch = -(-step // self._experiment.loader.steps_per_epoch)
        _log.info("evaluated", epoch=epoch, loss=round(totals.loss, 4), accuracy=accuracy)
        self.evaluated_step = step
