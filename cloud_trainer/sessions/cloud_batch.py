"""What a step of the cloud takes, what it gives, and who is told of it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from shared.model.features import Features, Gradients
from shared.training.losses import BatchLoss
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport


@dataclass(frozen=True, slots=True)
class CloudBatch:
    """One batch as it has come to the cloud, decoded."""

    step: int
    deployment: Deployment
    features: Features
    labels: Tensor
    gradients_return: bool
    """Whether an error gradient goes back to the edge: then K bounds what is in flight."""


@dataclass(frozen=True, slots=True)
class CloudStep:
    """What one step gave: its loss, the error gradients at the features (None where the edge needs none), and T3 so far."""

    loss: BatchLoss
    gradients: Gradients | None
    graph_seconds: float


class StepListener(Protocol):
    """Who is told of every step, on the compute thread."""

    def gradients_computed(self, batch: CloudBatch, gradients: Gradients) -> None:
        """The error gradients at the features are there; the cloud's own update follows."""

    def step_computed(self, report: StepReport, samples: int) -> None:
        """The cloud has done its part of a step."""
