"""What the trainer has computed and the edge may still ask for after a lost link: gradients and reports of the last steps.

Bounded by the staleness limit: an edge that starts step t has applied the gradients of all steps before t - K, so no more
than K + 1 gradients can be missing; reports have a bound of their own. Called from the compute thread.
"""

from shared.model.features import Gradients
from shared.runtime import ResendBuffer
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, Position, StepReport

REPORTS = 128
"""Reports that are kept: many more than an edge can have under way, and small."""


class Answers:
    """The answers of one session."""

    def __init__(self) -> None:
        self.gradients: ResendBuffer[tuple[Deployment, Gradients]] = ResendBuffer()
        """The error gradient of a step, and the deployment that it travels under."""
        self.reports: ResendBuffer[StepReport] = ResendBuffer(REPORTS)

    def forget_arrived(self, step: int, staleness: int) -> None:
        """Forget the gradients that have arrived, since the batch of this step has started under this limit K."""
        self.gradients.forget_before(step - staleness)

    def clear(self) -> None:
        """The session has restored a checkpoint: what it had computed belongs to an earlier lineage."""
        self.gradients.clear()
        self.reports.clear()

    def cover(self, position: Position, next_step: int, *, gradients_return: bool) -> bool:
        """Whether all that an edge at this position lacks is here."""
        return (
            position.gradient_step <= next_step
            and position.report_step <= next_step
            and (not gradients_return or self.gradients.covers(position.gradient_step, next_step))
            and self.reports.covers(position.report_step, next_step)
        )
