"""The results of a loss on a batch: its mean, and the error gradient at the model's output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import JsonValue
from torch import Tensor

from shared.errors import ConfigError, ModelError
from shared.factory import Allowed, load_factory
from shared.model.features import Features, Gradients, specs_of
from shared.model.spec import TensorSpec, is_differentiable
from shared.registry import LOSSES, Labels, LossConfig
from shared.training.losses.labels import BatchLabels, check_label_count, check_label_shape, label_tensors

if TYPE_CHECKING:
    from shared.training.metrics import Tally


_LOOK = attrgetter("shape", "dtype")
"""Shape and type of a tensor."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Mean loss of a batch and, for class labels, how many of its samples were right."""

    loss: float
    correct: int | None
    samples: int


class ComputedLoss(NamedTuple):
    """The loss of a part of a batch with its graph."""

    root: Tensor
    """Start of a backward: the gradients of all parts, and of all batches of an update, sum to that of the mean."""
    loss: Tensor
    """The part's own mean."""
    outputs: Features
    labels: Features

    def read(self) -> BatchLoss:
        """The figures; waits for a GPU."""
        output, labels = self.outputs[0].detach(), self.labels[0]
        is_one = len(self.outputs) == len(self.labels) == 1
        classes = is_one and output.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
        correct = int((output.argmax(1) == labels).sum()) if classes else None
        return BatchLoss(float(self.loss.detach()), correct, len(labels))


def whole_loss(parts: Sequence[BatchLoss]) -> BatchLoss:
    """The loss of a batch that was computed in these parts, one or more: their mean, weighted by samples."""
    if len(parts) == 1:
        return parts[0]
    samples = sum(part.samples for part in parts)
    counts = [part.correct for part in parts if part.correct is not None]
    loss = sum(part.loss * part.samples for part in parts) / samples
    return BatchLoss(loss, sum(counts) if len(counts) == len(parts) else None, samples)


class LossHead:
    """A loss function: mean over the batch of (output, labels). A user's own takes a tuple where several tensors leave the last
    block, and where the labels are several."""

    def __init__(self, loss: LossConfig, allowed: Allowed | None) -> None:
        """allowed: names of functions that it may be, beside those of `LOSSES`. Raises ModelError or ConfigError."""
        self._loss, self._labels = loss, loss.labels
        self._checked: tuple[list[Any], list[Any]] | None = None
        """Shapes and types of the last outputs, and of the last labels."""
        self._arguments: dict[str, Any] = {}
        """The arguments of the function beside outputs and labels, for the last outputs."""
        if loss.name in LOSSES:
            self._function = resolve_name(LOSSES[loss.name].implementation)
        elif ":" in loss.name:
            self._function = load_factory(loss.name, key="training.loss", allowed=allowed)
            _check_function(loss, self._function)
        else:
            raise ModelError(
                f"loss {loss.name!r} is unknown; use one of {', '.join(LOSSES)}, or package.module:function"
            )

    @property
    def name(self) -> str:
        """Return the name of the loss."""
        return self._loss.name

    def compute(
        self,
        outputs: Features,
        labels: BatchLabels,
        share: float = 1.0,
        batches: int = 1,
        scale: float | None = None,
        counts: Tensor | None = None,
    ) -> ComputedLoss:
        """The loss of a batch, with a graph where gradients are on. Raises ModelError when the shapes do not fit, and where the
        loss is not one number.

        share: of the samples of the whole batch, where others compute the loss of the rest. batches: of an update, which goes
        by the mean of their losses, so each counts alike, a short one too. scale: of the root, so that small gradients do not
        vanish. counts: see `COUNTS`; with them the root is the sum of the losses, divided by the count of the update, and the
        share and the number of batches do not matter to it.
        """
        if share != 1.0 and not self._loss.is_divisible:
            raise ModelError(
                f"loss {self._loss.name!r} is the mean over all tokens of a batch, or by the weights of its classes; one "
                "worker must have the last block for all samples"
            )
        fitted = self._fitted(outputs, label_tensors(labels))
        summing = {} if counts is None else {"reduction": "sum"}
        loss = self._function(_given(outputs), _given(fitted), **self._arguments, **summing)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ModelError(
                f"loss {self._loss.name!r} gives {what} for a batch; it must give a tensor of one number, the mean"
            )
        if counts is None:
            root = loss if share == 1.0 else loss * share
            root = root if batches == 1 else root / batches
        else:
            own, of_update = counts.tolist()
            root = loss / of_update
            # The mean of a batch of which nothing counts is 0, unless nothing counts of its whole update.
            loss = loss.detach() / (own * share if own or not of_update else 1.0)
        if scale is not None:
            root = root * torch.tensor(scale, dtype=torch.float32, device=root.device)
        return ComputedLoss(root, loss, outputs, fitted)

    def gradient(
        self,
        outputs: Features,
        labels: BatchLabels,
        share: float = 1.0,
        batches: int = 1,
        scale: float | None = None,
        counts: Tensor | None = None,
    ) -> tuple[BatchLoss, Gradients]:
        """The loss of a batch and its error gradient at `outputs`; None where it does not depend on them.

        share, batches, scale, counts: see `compute`, which raises the same.
        """
        given = tuple(one.detach().requires_grad_(is_differentiable(one.dtype)) for one in outputs)
        with torch.enable_grad():
            computed = self.compute(given, labels, share, batches, scale, counts)
        if not computed.root.requires_grad:
            return computed.read(), (None,) * len(outputs)
        leaves = [one for one in given if one.requires_grad]
        found = iter(torch.autograd.grad(computed.root, leaves, allow_unused=True))
        return computed.read(), tuple(next(found) if one.requires_grad else None for one in given)

    def evaluate(self, outputs: Features, labels: BatchLabels, tally: "Tally | None" = None) -> BatchLoss:
        """The loss of a batch, no more. tally: counts it for metrics. Raises as `compute` does, and as `Tally.update`."""
        with torch.no_grad():
            computed = self.compute(outputs, labels)
            if tally is not None:
                tally.update(computed.outputs, computed.labels)
            return computed.read()

    def _fitted(self, outputs: Features, labels: Features) -> Features:
        """The labels as the function takes them, on the device of the outputs."""
        layout = list(map(_LOOK, outputs)), list(map(_LOOK, labels))
        if layout != self._checked:  # batch after batch has the same
            check_label_count(self._loss, len(labels))
            for one in labels:
                check_label_shape(self._loss, specs_of(outputs), TensorSpec.of(one))
            self._checked = layout
            if self._loss.kwargs:
                self._arguments = {
                    key: _argument(value, outputs[0], is_float=key in self._loss.arguments)
                    for key, value in self._loss.kwargs.items()
                }
        output = outputs[0]
        there = tuple(one.to(output.device) for one in labels)
        if self._labels is Labels.ALIKE and there[0].dim() < output.dim():
            return (there[0].unsqueeze(-1),)
        return there


def _given(tensors: Features) -> Tensor | Features:
    return tensors[0] if len(tensors) == 1 else tensors


def _check_function(loss: LossConfig, function: Callable[..., object]) -> None:
    """Refuse what is no function of the output, the labels and the given arguments. Raises ModelError, and ConfigError for the
    arguments."""
    if isinstance(function, type) or type(function).__module__ == "torch.nn.modules.loss":
        what = "a class" if isinstance(function, type) else "a module of torch.nn"
        raise ModelError(
            f"loss {loss.name!r} is {what}; name a function of the output and the labels, with its arguments beside it, as in "
            'training.loss = { name = "cross_entropy", kwargs = { weight = [1.0, 2.0] } }'
        )
    try:
        signature(function).bind(None, None, **loss.kwargs)
    except TypeError as cause:
        raise ConfigError(
            f"loss {loss.name!r} cannot be called with an output, labels and training.loss.kwargs: {cause}"
        ) from cause
    except ValueError:  # a function of C, which does not say what it takes
        return


def _argument(value: JsonValue, output: Tensor, *, is_float: bool) -> Any:
    """An argument as the function takes it: a list of numbers as a tensor beside the output, of its type if it has fractions.

    is_float: of whole numbers too. Under autocast, which computes losses in float32, it is not of fewer bits.
    """
    if not isinstance(value, list):
        return value
    try:
        tensor = torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):  # other things than numbers, or lists of several lengths
        return value
    if not (is_float or tensor.is_floating_point()):
        return tensor.to(output.device)
    is_automatic = torch.is_autocast_enabled(output.device.type)
    dtype = torch.promote_types(output.dtype, torch.float32) if is_automatic else output.dtype
    return torch.tensor(value, dtype=dtype, device=output.device)
