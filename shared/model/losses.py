"""The loss at the end of the chain, by name, and what it says about a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.errors import ModelError
from shared.factory import load_factory

LossFunction = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, LossFunction] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}
_OF_EQUAL_SHAPES = ("mse", "l1", "bce_with_logits")
"""Losses of an output and a label for each of its numbers; torch would stretch one to the other's shape and go on."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Mean loss of a batch and, for class labels, how many of its samples were right."""

    loss: float
    correct: int | None
    samples: int


class LossHead:
    """A loss function: mean over the batch of (outputs, labels)."""

    def __init__(self, name: str, allowed_prefixes: Sequence[str] | None) -> None:
        """name: one of `LOSSES`, or package.module:function under an allowed prefix. Raises ModelError."""
        self._name = name
        if name in LOSSES:
            self._function = LOSSES[name]
        elif ":" in name:
            self._function = load_factory(name, allowed_prefixes=allowed_prefixes)
        else:
            raise ModelError(f"loss {name!r} is unknown; use one of {', '.join(LOSSES)}, or package.module:function")

    def gradient(self, output: Tensor, labels: Tensor) -> tuple[BatchLoss, Tensor]:
        """The loss of a batch and its error gradient at `output`. Raises ModelError when their shapes do not fit."""
        self._check(output, labels)
        leaf = output.detach().requires_grad_()
        labels = labels.to(output.device)
        with torch.enable_grad():
            loss = self._function(leaf, labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return _batch_loss(loss, leaf, labels), gradient

    def evaluate(self, output: Tensor, labels: Tensor) -> BatchLoss:
        """The loss of a batch, no more. Raises as `gradient` does."""
        self._check(output, labels)
        labels = labels.to(output.device)
        with torch.no_grad():
            return _batch_loss(self._function(output, labels), output, labels)

    def _check(self, output: Tensor, labels: Tensor) -> None:
        if self._name in _OF_EQUAL_SHAPES and output.shape != labels.shape:
            raise ModelError(
                f"loss {self._name!r} takes labels of the output's own shape: the model's output is {tuple(output.shape)}, "
                f"the labels are {tuple(labels.shape)}"
            )


def _batch_loss(loss: Tensor, output: Tensor, labels: Tensor) -> BatchLoss:
    classes = output.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
    correct = int((output.detach().argmax(1) == labels).sum()) if classes else None
    return BatchLoss(float(loss.detach()), correct, len(labels))
