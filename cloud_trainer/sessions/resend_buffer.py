"""What the trainer has computed and the edge may still ask for after a lost link: gradients and reports of the last steps.

Bounded by the staleness limit: an edge that starts step t has applied the gradients of all steps before t - K, so no more
than K + 1 can be missing. Called from the compute thread.
"""

from torch import Tensor

from shared.wire.isthmus.v1.trainer_pb2 import Deployment, Position, StepReport

REPORTS = 128
"""Reports that are kept: many more than an edge can have under way, and small."""


class ResendBuffer:
    """Of one session."""

    def __init__(self) -> None:
        self._gradients: dict[int, tuple[Deployment, Tensor]] = {}
        self._reports: dict[int, StepReport] = {}

    def admitted(self, step: int, staleness: int) -> None:
        """A batch that started under this limit K has come: older gradients than it can wait for have arrived."""
        for settled in [old for old in self._gradients if old < step - staleness]:
            del self._gradients[settled]

    def computed(self, step: int, deployment: Deployment, gradient: Tensor) -> None:
        """The error gradient of a step, and the deployment that it travels under."""
        self._gradients[step] = deployment, gradient

    def reported(self, report: StepReport) -> None:
        """The report of a step."""
        self._reports[report.step] = report
        self._reports.pop(report.step - REPORTS, None)

    def clear(self) -> None:
        """The session has gone back: what it had computed is of another life."""
        self._gradients.clear()
        self._reports.clear()

    def covers(self, position: Position, next_step: int, *, gradients_go: bool) -> bool:
        """Whether all that an edge at this position lacks is here."""
        gradients = range(position.gradient_step, next_step) if gradients_go else range(0)
        known = position.gradient_step <= next_step and position.report_step <= next_step
        return (
            known
            and len(gradients) <= len(self._gradients)
            and next_step - position.report_step <= len(self._reports)
            and all(step in self._gradients for step in gradients)
            and all(step in self._reports for step in range(position.report_step, next_step))
        )

    def gradients_from(self, step: int) -> list[tuple[int, Deployment, Tensor]]:
        """Gradients of this step and later ones, in order."""
        return [(known, *self._gradients[known]) for known in sorted(self._gradients) if known >= step]

    def reports_from(self, step: int) -> list[StepReport]:
        """Reports of this step and later ones, in order."""
        return [self._reports[known] for known in sorted(self._reports) if known >= step]
