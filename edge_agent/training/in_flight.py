"""The batches between their forward and their settling, and what the edge remembers of each.

Also judges what the trainer sends: error gradients, one a step, in order, of the feature's own shape; and reports, in
order too where they are what settles a step.
"""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from shared.codec import Encoded
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.runtime import Due, judge
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


@dataclass(slots=True)
class BatchInFlight:
    """One batch on its way: the deployment that it was sent under, and what its settling needs."""

    step: int
    deployment: Deployment
    samples: int
    feature: TensorSpec
    forward_seconds: float
    parts_due: int
    """What is still to come from the trainer: a report, and a gradient where the edge learns."""
    compression_error: Tensor | None = None
    outputs: Tensor | None = None
    """The feature, until it is encoded."""
    labels: Tensor | None = None
    encoding: Encoded | None = None
    """What was sent, kept until the gradient has come: it may have to be sent again, and a codec may draw random numbers."""


class InFlight:
    """At most K + 1 batches whose gradient is due, oldest first, and the one before them whose report may follow it."""

    def __init__(self) -> None:
        self._by_step: dict[int, BatchInFlight] = {}
        self._gradients_due: deque[int] = deque()
        self._settled_by_reports = False

    def add(self, batch: BatchInFlight, *, gradient_due: bool) -> None:
        """A batch was forwarded."""
        self._by_step[batch.step] = batch
        self._settled_by_reports = not gradient_due
        if gradient_due:
            self._gradients_due.append(batch.step)

    def oldest(self) -> int | None:
        """The oldest step of which something is still to come."""
        return next(iter(self._by_step), None)

    def at(self, step: int) -> BatchInFlight:
        """A batch that the trainer has not computed."""
        return self._by_step[step]

    def resume(self, gradient_step: int) -> None:
        """A new stream begins: the gradients of this step and later ones are due."""
        if not self._settled_by_reports:
            self._gradients_due = deque(step for step in self._by_step if step >= gradient_step)

    def clear(self) -> None:
        """Forget all: the run goes back to before them."""
        self._by_step.clear()
        self._gradients_due.clear()

    def answered(self, step: int) -> BatchInFlight:
        """The batch that a gradient or report has come for; it is forgotten with the last of them.

        Raises ProtocolError when it is not in flight, or not the oldest where a report settles it.
        """
        batch = self._by_step.get(step)
        if batch is None:
            raise ProtocolError(f"the trainer speaks of step {step}, which is not in flight")
        if self._settled_by_reports and step != self.oldest():
            raise ProtocolError(f"the trainer reports step {step}; the report of step {self.oldest()} is due")
        batch.parts_due -= 1
        if batch.parts_due == 0:
            del self._by_step[step]
        return batch

    def accept(self, frame: Frame) -> None:
        """Agree to a tensor that the trainer announces, or raise ProtocolError."""
        judge(frame, self._due())
        self._gradients_due.popleft()

    def _due(self) -> Due | None:
        """The error gradient of the oldest batch that lacks one, as its feature went up."""
        if not self._gradients_due:
            return None
        step = self._gradients_due[0]
        if (batch := self._by_step.get(step)) is None:
            raise ProtocolError(f"the trainer has reported step {step} twice before its error gradient came")
        deployment, role = batch.deployment, Role.ROLE_ERROR_GRADIENT
        return Due(step, role, deployment.epoch, deployment.downlink_codec, batch.feature)
