"""What a loss says about a batch: its mean, and the error gradient at the model's output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

import torch
from torch import Tensor

from shared.errors import ModelError
from shared.factory import Allowed, load_factory
from shared.model.features import Features
from shared.model.spec import TensorSpec
from shared.registry import LOSSES, Labels, labels_of
from shared.training.losses.labels import check_label_shape


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Mean loss of a batch and, for class labels, how many of its samples were right."""

    loss: float
    correct: int | None
    samples: int


def whole_loss(parts: Sequence[BatchLoss]) -> BatchLoss:
    """The loss of a batch that was computed in these parts, one or more: their mean, weighted by samples."""
    samples = sum(part.samples for part in parts)
    counts = [part.correct for part in parts if part.correct is not None]
    loss = parts[0].loss if len(parts) == 1 else sum(part.loss * part.samples for part in parts) / samples
    return BatchLoss(loss, sum(counts) if len(counts) == len(parts) else None, samples)


class LossHead:
    """A loss function: mean over the batch of (output, labels). It takes one tensor, so one tensor leaves the last block."""

    def __init__(self, name: str, allowed: Allowed | None) -> None:
        """name: one of `LOSSES`, or package.module:function if it is allowed. Raises ModelError."""
        self._name = name
        if name in LOSSES:
            self._function = resolve_name(LOSSES[name].implementation)
        elif ":" in name:
            self._function = load_factory(name, allowed=allowed)
        else:
            raise ModelError(f"loss {name!r} is unknown; use one of {', '.join(LOSSES)}, or package.module:function")

    def gradient(self, outputs: Features, labels: Tensor, share: float = 1.0) -> tuple[BatchLoss, Features]:
        """The loss of a batch and its error gradient at `outputs`. Raises ModelError when their shapes do not fit.

        share: of the samples of the whole batch, where others compute the loss of the rest: it scales the gradient, so that
        the gradients of all parts sum to that of the mean over the batch. The loss that is returned is the part's own mean.
        """
        (output,) = outputs
        labels = self._fitted(output, labels)
        leaf = output.detach().requires_grad_()
        with torch.enable_grad():
            loss = self._function(leaf, labels)
            gradients = torch.autograd.grad(loss if share == 1.0 else loss * share, leaf)
        return _batch_loss(loss, leaf, labels), gradients

    def evaluate(self, outputs: Features, labels: Tensor) -> BatchLoss:
        """The loss of a batch, no more. Raises as `gradient` does."""
        (output,) = outputs
        labels = self._fitted(output, labels)
        with torch.no_grad():
            return _batch_loss(self._function(output, labels), output, labels)

    def _fitted(self, output: Tensor, labels: Tensor) -> Tensor:
        """The labels as the function takes them, on the device of the output."""
        check_label_shape(self._name, TensorSpec.of(output), TensorSpec.of(labels))
        labels = labels.to(output.device)
        return labels.unsqueeze(-1) if labels_of(self._name) is Labels.ALIKE and labels.dim() < output.dim() else labels


def _batch_loss(loss: Tensor, output: Tensor, labels: Tensor) -> BatchLoss:
    classes = output.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
    correct = int((output.detach().argmax(1) == labels).sum()) if classes else None
    return BatchLoss(float(loss.detach()), correct, len(labels))
