"""A translation of errors in a user's model or loss into ours, with sentences that the user of the edge can read."""

from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from shared.errors import DeviceError, IsthmusError, ModelError, ProtocolError
from shared.foreign import described, foreign_code, raise_translated
from shared.model.features import Features, specs_of
from shared.model.spec import TensorSpec
from shared.registry import Labels, LossConfig
from shared.training.device import device_failure
from shared.training.losses import LEFT_OUT, check_label_shape

T = TypeVar("T")


def translate_failures(what: str, device: torch.device) -> foreign_code:
    """Raise ModelError, beginning with `what`, if the body raises another error than an IsthmusError.

    device: the body's device. Raises DeviceError if the device can no longer compute.
    """
    return foreign_code(lambda cause: _failure(what, device, cause))


def raise_failure(what: str, device: torch.device, cause: BaseException) -> NoReturn:
    """Raise what `translate_failures` makes of what a body has raised; see `raise_translated`."""
    raise_translated(cause, lambda each: _failure(what, device, each))


def computed_loss(compute: Callable[[], T], loss: LossConfig, outputs: Features, labels: Features) -> T:
    """Compute a loss, of the last block's output and the labels, and raise what fails as `translate_failures` does.

    Raises ModelError for labels of a shape that the loss cannot take, ProtocolError for classes that the output does not have.
    """
    if outputs[0].device.type != "cpu":
        # There, a class that is none would be an assertion of a kernel, after which the whole process cannot compute any more.
        _check_labels(loss, outputs, labels)
    try:
        return compute()
    except BaseException as cause:
        raise_translated(cause, lambda each: _loss_failure(loss, outputs, labels, each))


def _loss_failure(loss: LossConfig, outputs: Features, labels: Features, cause: BaseException) -> IsthmusError:
    try:
        _check_labels(loss, outputs, labels)
    except IsthmusError as wrong:
        return wrong
    shapes = " and ".join(str(tuple(output.shape)) for output in outputs)
    kinds = " and ".join(f"{one.dtype} {tuple(one.shape)}" for one in labels)
    return _failure(f"loss {loss.name!r} of an output {shapes} and labels {kinds}", outputs[0].device, cause)


def _failure(what: str, device: torch.device, cause: BaseException) -> IsthmusError:
    if isinstance(cause, DeviceError):
        return cause
    if device_failure(device) is not None:
        return DeviceError(f"{what} failed, and the trainer's {device} with it: {described(cause)}")
    return cause if isinstance(cause, IsthmusError) else ModelError(f"{what} failed with {described(cause)}")


def _check_labels(loss: LossConfig, outputs: Features, labels: Features) -> None:
    for one in labels:
        check_label_shape(loss, specs_of(outputs), TensorSpec.of(one))
    if loss.labels is Labels.CLASSES and not labels[0].is_floating_point():
        _check_classes(labels[0], outputs[0].shape[1])
    if loss.labels is Labels.TOKENS:
        _check_classes(labels[0], outputs[0].shape[-1])


def _check_classes(labels: Tensor, classes: int) -> None:
    low, high = _extremes(labels)
    if low < 0:
        low, high = _extremes(labels[labels != LEFT_OUT])
    if not 0 <= low <= high < classes:
        raise ProtocolError(
            f"labels are {low} to {high}; the model's output has {classes} classes, so they must be 0 to {classes - 1}"
        )


def _extremes(labels: Tensor) -> tuple[int, int]:
    """The least and the greatest; zeros where there are none."""
    if not labels.numel():
        return 0, 0
    low, high = labels.aminmax()
    return int(low), int(high)
