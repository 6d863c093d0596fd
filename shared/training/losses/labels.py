"""Labels: the type in which they travel, and which of them a loss takes."""

import math

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from shared.bounds import MOST_LABEL_TENSORS
from shared.errors import ModelError
from shared.model.features import Features, FeatureSpecs
from shared.model.spec import TensorSpec
from shared.registry import Argument, Labels, LossConfig

BatchLabels = Tensor | Features
"""Labels of a batch: one tensor, or several, which a loss of the user's own takes as a tuple."""
_LEAST_LABEL_ELEMENTS = 512
"""Least bound on the elements of one sample's labels, however small the model's input and output are."""
_WIDTHS = tuple((dtype, np.iinfo(dtype)) for dtype in (np.uint8, np.int8, np.int16, np.int32))


LEFT_OUT = -100
"""Label of an integer that counts for nothing, as torch has it."""


def label_tensors(labels: BatchLabels) -> Features:
    """Return the tensors of labels, in their order."""
    return (labels,) if isinstance(labels, Tensor) else labels


def narrowed(labels: Tensor) -> Tensor:
    """Integer labels in the least width that holds them all, as they travel; others as they are."""
    if labels.is_floating_point() or not labels.numel():
        return labels
    numbers = labels.numpy(force=True)  # it keeps Python's interpreter, which torch waits for again
    low, high = int(numbers.min()), int(numbers.max())
    for dtype, holds in _WIDTHS:
        if holds.min <= low and high <= holds.max:
            return torch.from_numpy(numbers.astype(dtype))
    return labels


def widened(labels: Tensor) -> Tensor:
    """Integer labels of any width as int64, which losses take."""
    return labels if labels.is_floating_point() else labels.long()


def check_labels(loss: LossConfig, inputs: FeatureSpecs, outputs: FeatureSpecs, labels: TensorSpec) -> None:
    """Refuse labels that the loss cannot take or that are too many, from their shape and type alone. Raises ModelError.

    inputs, outputs: of the whole model, for a batch of any size. labels: one tensor of them.
    """
    samples = labels.shape[0]
    check_label_shape(loss, tuple(TensorSpec((samples, *one.shape[1:]), one.dtype) for one in outputs), labels)
    each = max(_LEAST_LABEL_ELEMENTS, *(math.prod(of_model.shape[1:]) for of_model in (*inputs, *outputs)))
    if math.prod(labels.shape) > samples * each:
        raise ModelError(
            f"labels {labels.shape} came for {samples} samples; of each sample they may have {each} numbers: as many as the "
            f"model's input or output has, or {_LEAST_LABEL_ELEMENTS}"
        )


def check_label_count(loss: LossConfig, count: int) -> None:
    """Refuse labels of too many tensors, and of several where the loss is one of `LOSSES`. Raises ModelError."""
    if count > MOST_LABEL_TENSORS:
        raise ModelError(f"the labels of a batch are {count} tensors; at most {MOST_LABEL_TENSORS} are possible")
    if count > 1 and loss.labels is not Labels.ANY:
        raise ModelError(
            f"loss {loss.name!r} takes one tensor of labels, and the labels are {count}; let training.loss be a function of "
            "yours, as package.module:function, which takes the tuple"
        )


def check_label_shape(loss: LossConfig, outputs: FeatureSpecs, labels: TensorSpec) -> None:
    """Refuse labels of a shape that one of `LOSSES` cannot take with these outputs, and arguments of another number of classes.
    Raises ModelError."""
    if loss.labels is Labels.ANY:
        return
    if len(outputs) > 1:
        raise ModelError(
            f"loss {loss.name!r} takes one tensor, and the model returns {len(outputs)}; let model.output name one of them, or "
            "training.loss a function of yours, as package.module:function, which takes the tuple and the labels"
        )
    (output,) = outputs
    _check_arguments(loss, output.shape)
    shapes = f"the model's output is {output.shape}, the labels are {labels.shape}"
    if loss.labels is Labels.ALIKE and output.shape not in (labels.shape, (*labels.shape, 1)):
        raise ModelError(f"loss {loss.name!r} takes labels of the output's own shape: {shapes}")
    if loss.name == "bce_with_logits" and not labels.dtype.is_floating_point:
        raise ModelError(
            f"loss {loss.name!r} takes labels with fractions, and these are integers; give them as label.float()"
        )
    if loss.labels is Labels.TOKENS and (labels.dtype.is_floating_point or output.shape[:-1] != labels.shape):
        raise ModelError(
            f"loss {loss.name!r} takes an output whose last dimension is the tokens' scores, and integer labels of the "
            f"output's shape without that dimension: {shapes}"
        )
    if loss.labels is not Labels.CLASSES or (labels.dtype.is_floating_point and output.shape == labels.shape):
        return
    fits = len(output.shape) >= 2 and labels.shape == (output.shape[0], *output.shape[2:])
    if not fits or labels.dtype.is_floating_point:
        hint = ""
        if labels.dtype.is_floating_point:
            hint = "; class numbers must be integers"
        elif len(output.shape) > 2 and labels.shape == output.shape[:-1]:
            hint = "; this output seems to have its classes last, which loss 'token_cross_entropy' takes"
        raise ModelError(
            f"loss {loss.name!r} takes an output whose second dimension is the classes, and labels of the output's shape "
            f"without that dimension: {shapes}{hint}"
        )


def class_count(loss: LossConfig, outputs: FeatureSpecs) -> int | None:
    """Count the classes of which integer labels must be; None where one of `LOSSES` does not say it."""
    if len(outputs) > 1 or loss.labels not in (Labels.CLASSES, Labels.TOKENS):
        return None
    return outputs[0].shape[1 if loss.labels is Labels.CLASSES else -1]


def _check_arguments(loss: LossConfig, output: tuple[int, ...]) -> None:
    """Refuse weights that do not suit an output of this shape. Raises ModelError."""
    sample = output[1:]
    classes = output[-1:] if loss.labels is Labels.TOKENS else sample[:1]
    for key, argument in loss.arguments.items():
        shape = _shape_of(loss.kwargs[key])
        if argument is Argument.CLASSES:
            fits = shape == classes
        else:  # a single number suits every output
            stretched = zip(reversed(shape), reversed(sample or (1,)), strict=False)
            fits = len(shape) <= max(1, len(sample)) and all(length in (1, most) for length, most in stretched)
        if not fits:
            raise ModelError(
                f"loss {loss.name!r} is given {key} of {' x '.join(map(str, shape))} numbers, and the model's output is "
                f"{output}; {key} must be {argument.value}"
            )


def _shape_of(value: JsonValue) -> tuple[int, ...]:
    """The lengths of nested lists of equal lengths."""
    lengths = []
    while isinstance(value, list):
        lengths.append(len(value))
        value = value[0]
    return tuple(lengths)
