"""What a loss says about a batch, and which labels it refuses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.errors import ModelError
from shared.factory import Allowed, load_factory
from shared.model.features import Features, FeatureSpecs
from shared.model.spec import TensorSpec
from shared.training.losses.registry import LOSSES, labels_of
from shared.training.losses.spec import Labels

_LEAST_LABEL_ELEMENTS = 512
"""What the labels of one sample may always have, however small the model's input and output are."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Mean loss of a batch and, for class labels, how many of its samples were right."""

    loss: float
    correct: int | None
    samples: int


def whole_loss(parts: Sequence[BatchLoss]) -> BatchLoss:
    """The loss of a batch of which each of these is a part: the mean by samples."""
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
            self._function = LOSSES[name].function
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


_WIDTHS = (torch.uint8, torch.int8, torch.int16, torch.int32)


def narrowed(labels: Tensor) -> Tensor:
    """Integer labels in the least width that holds them all, as they travel; others as they are."""
    if labels.is_floating_point() or not labels.numel():
        return labels
    low, high = (int(extreme) for extreme in labels.aminmax())
    for dtype in _WIDTHS:
        holds = torch.iinfo(dtype)
        if holds.min <= low and high <= holds.max:
            return labels.to(dtype)
    return labels


def widened(labels: Tensor) -> Tensor:
    """Integer labels of any width as int64, which losses take."""
    return labels if labels.is_floating_point() else labels.long()


def check_labels(loss: str, inputs: FeatureSpecs, output: TensorSpec, labels: TensorSpec) -> None:
    """Refuse labels that the loss cannot take or that are too many, from their shape and type alone. Raises ModelError.

    inputs, output: of the whole model, for a batch of any size.
    """
    samples = labels.shape[0]
    check_label_shape(loss, TensorSpec((samples, *output.shape[1:]), output.dtype), labels)
    each = max(_LEAST_LABEL_ELEMENTS, *(math.prod(of_model.shape[1:]) for of_model in (*inputs, output)))
    if math.prod(labels.shape) > samples * each:
        raise ModelError(
            f"labels {labels.shape} came for {samples} samples; of each sample they may have {each} numbers: as many as the "
            f"model's input or output has, or {_LEAST_LABEL_ELEMENTS}"
        )


def check_label_shape(loss: str, output: TensorSpec, labels: TensorSpec) -> None:
    """Refuse labels of a shape that one of `LOSSES` cannot take with this output. Raises ModelError."""
    shapes = f"the model's output is {output.shape}, the labels are {labels.shape}"
    if labels_of(loss) is Labels.ALIKE and output.shape not in (labels.shape, (*labels.shape, 1)):
        raise ModelError(f"loss {loss!r} takes labels of the output's own shape: {shapes}")
    if labels_of(loss) is not Labels.CLASSES or (labels.dtype.is_floating_point and output.shape == labels.shape):
        return
    fits = len(output.shape) >= 2 and labels.shape == (output.shape[0], *output.shape[2:])
    if not fits or labels.dtype.is_floating_point:
        hint = ""
        if labels.dtype.is_floating_point:
            hint = "; class numbers must be integers"
        elif len(output.shape) > 2 and labels.shape == output.shape[:-1]:
            hint = "; this output seems to have its classes last, so let the model end with movedim(-1, 1)"
        raise ModelError(
            f"loss {loss!r} takes an output whose second dimension is the classes, and labels of the output's shape without "
            f"that dimension: {shapes}{hint}"
        )


def _batch_loss(loss: Tensor, output: Tensor, labels: Tensor) -> BatchLoss:
    classes = output.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
    correct = int((output.detach().argmax(1) == labels).sum()) if classes else None
    return BatchLoss(float(loss.detach()), correct, len(labels))
