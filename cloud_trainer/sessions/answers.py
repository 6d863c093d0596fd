"""The gradients and reports of the last steps, which an edge may ask for again after a lost link.

An edge that starts step t has applied the gradients of all steps before t - K, so at most K + 1 gradients are here.
Reports have a bound of their own. Called from the compute thread.
"""

from shared.model.features import Gradients
from shared.runtime import ResendBuffer
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, Position, StepReport

MOST_REPORTS = 128
"""The newest reports that are here: many more than an edge can lack, and each is small."""


class Answers:
    """What one session has answered to batches."""

    def __init__(self) -> None:
        self.gradients: ResendBuffer[tuple[Deployment, Gradients]] = ResendBuffer()
        """The error gradients of a step, and the deployment under which they travel."""
        self.reports: ResendBuffer[StepReport] = ResendBuffer(MOST_REPORTS)

    def forget_arrived(self, step: int, staleness: int) -> None:
        """Forget the gradients that have arrived, since the edge has started the batch of `step` with this K."""
        self.gradients.forget_before(step - staleness)

    def clear(self) -> None:
        """Forget everything: the session has restored a checkpoint, and all that is here belongs to an earlier lineage."""
        self.gradients.clear()
        self.reports.clear()

    def cover(self, position: Position, next_step: int, *, gradients_return: bool) -> bool:
        """Whether everything that an edge at this position lacks is here. next_step: the step that the cloud computes next."""
        return (
            position.gradient_step <= next_step
            and position.report_step <= next_step
            and (not gradients_return or self.gradients.covers(position.gradient_step, next_step))
            and self.reports.covers(position.report_step, next_step)
        )
