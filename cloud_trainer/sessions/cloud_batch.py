"""A step of the cloud: the batch that it takes, what it computes, and the listener that is told."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from shared.model.features import Features, Gradients
from shared.training.losses import BatchLoss
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport


@dataclass(frozen=True, slots=True)
class CloudBatch:
    """One batch as the cloud computes it, decoded."""

    step: int
    deployment: Deployment
    features: Features
    labels: Tensor
    gradients_return: bool
    """Whether an error gradient goes back to the edge, and so K bounds what is in flight."""


@dataclass(frozen=True, slots=True)
class CloudStep:
    """The outcome of forward and backward, before the update."""

    loss: BatchLoss
    gradients: Gradients | None
    """The error gradients at the features, on the host; None where nothing on the edge learns."""
    seconds: float
    """What forward, loss and backward took: T3 without the update."""


class StepListener(Protocol):
    """Is told of every step, on the compute thread."""

    def gradients_computed(self, batch: CloudBatch, gradients: Gradients) -> None:
        """The error gradients at the features are computed; the cloud's own update follows."""

    def step_computed(self, report: StepReport, samples: int) -> None:
        """The cloud has updated its weights. samples: of the batch."""
