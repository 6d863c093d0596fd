"""Divergence: losses and weights must be finite numbers.

Knows nothing of checkpoints: the run decides the consequences.
"""

import math
from typing import Literal

import structlog
import torch
from torch import Tensor, nn

from shared.errors import DivergedError, StorageError
from shared.training.finite import are_finite
from shared.training.loss_scale import LEAST, LossScale

_log = structlog.get_logger(__name__)

OnNan = Literal["stop", "warn"]


class LossCheck:
    """The check of the loss of every step (training.on_nan)."""

    def __init__(self, on_nan: OnNan, loss_scale: LossScale | None) -> None:
        """loss_scale: by which losses are scaled, so that a step that overflows is skipped; None where they are not."""
        self._on_nan = on_nan
        self._loss_scale = loss_scale
        self._warned = False

    def check(self, step: int, loss: float) -> None:
        """Raise DivergedError for a loss that is no finite number, or with "warn" log a warning for the first one.

        Where the loss is scaled, an update that overflows is skipped, and no more. The training has diverged once it has
        skipped so many that the scale is below 1, or cannot fall any more.
        """
        scale = None if self._loss_scale is None else self._loss_scale.now
        if scale == LEAST:
            wrong = "the gradients overflow, however little the loss is scaled"
        elif not math.isfinite(loss) and (scale is None or scale < 1):
            wrong = f"the loss of step {step} is {loss}"
        else:
            return
        if self._on_nan == "stop":
            _log.error("training has diverged", step=step, loss=str(loss))
            raise DivergedError(f"{wrong}, so training has diverged", step)
        if not self._warned:
            self._warned = True
            _log.warning("the loss is no number", step=step, loss=str(loss))


def first_not_finite(module: nn.Module) -> str | None:
    """Return the name of a tensor of `module` that is no longer finite; None if all are.

    A parameter that learns must be finite. A buffer may hold an infinity, as a mask does, but no NaN.
    """
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            by_device.setdefault(parameter.device, {})[name] = parameter
    for learning in by_device.values():
        for name, is_finite in zip(learning, are_finite(list(learning.values())), strict=True):
            if not is_finite:
                return name
    for name, buffer in module.named_buffers():
        if bool(torch.isnan(buffer).any()):
            return name
    return None


def check_weights(module: nn.Module, on_nan: OnNan, step: int) -> None:
    """Raise DivergedError for weights that are not finite, unless `on_nan` is "warn". step: the next one."""
    if on_nan == "stop" and (name := first_not_finite(module)) is not None:
        raise DivergedError(f"{name} holds values that are no finite numbers, so training has diverged", step)


def with_outcome(
    diverged: DivergedError, good_step: int | None = None, unwritten: StorageError | None = None
) -> DivergedError:
    """Extend `diverged` with a sentence for the user that tells the fate of the weights.

    good_step: the step before which the last good weights were taken; None if there are none. unwritten: the reason why
    the result with them could not be written.
    """
    fate = "no checkpoint of good weights was taken before it, so none are kept"
    if good_step is not None:
        fate = f"the result holds the last good weights, those before step {good_step}"
    if unwritten is not None:
        fate = f"the last good weights, those before step {good_step}, could not be written: {unwritten}"
    return DivergedError(f'{diverged}; {fate} (training.on_nan = "warn" goes on)', diverged.step)
