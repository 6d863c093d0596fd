"""What the trainer says besides error gradients, handed to the part that it concerns."""

import structlog

from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.divergence import LossJudge
from edge_agent.training.step_boundary import StepBoundary
from shared.wire.isthmus.v1.trainer_pb2 import TrainResponse

_log = structlog.get_logger(__name__)


class TrainerMessages:
    """The messages of one run. Used on the event loop."""

    def __init__(self, judge: LossJudge, checkpointer: Checkpointer, boundary: StepBoundary) -> None:
        self._judge = judge
        self._checkpointer = checkpointer
        self._boundary = boundary
        self.trainer_stops = False
        """Whether the trainer is about to stop, and wants a checkpoint before."""

    def take(self, message: TrainResponse) -> None:
        """Hear a message. Raises DivergedError for the report of a loss that ends the run."""
        if message.HasField("report"):
            self._judge.judge(message.report.step, message.report.loss)
        if message.HasField("checkpointed"):
            self._checkpointer.note_checkpointed(message.checkpointed)
        elif message.HasField("stopping"):
            _log.info("the trainer is about to stop")
            self.trainer_stops = True
            self._boundary.request()
