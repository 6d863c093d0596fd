"""Hands every message of the trainer that is no tensor to the part of the run that it concerns."""

import structlog

from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.divergence import LossCheck
from edge_agent.training.step_boundary import StepBoundary
from shared.wire.isthmus.v1.trainer_pb2 import TrainResponse

_log = structlog.get_logger(__name__)


class TrainerMessages:
    """The messages of one run. Used on the event loop."""

    def __init__(self, loss_check: LossCheck, checkpointer: Checkpointer, boundary: StepBoundary) -> None:
        self._loss_check = loss_check
        self._checkpointer = checkpointer
        self._boundary = boundary
        self.trainer_stops = False
        """Whether the trainer is about to stop, and waits for a last checkpoint."""

    def take(self, message: TrainResponse) -> None:
        """Take one message. Raises DivergedError for the report of a loss that ends the run."""
        if message.HasField("report"):
            self._loss_check.check(message.report.step, message.report.loss)
        if message.HasField("checkpointed"):
            self._checkpointer.note_checkpointed(message.checkpointed)
        elif message.HasField("stopping"):
            _log.info("the trainer is about to stop")
            self.trainer_stops = True
            self._boundary.request()
