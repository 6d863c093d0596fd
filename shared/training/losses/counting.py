"""Counts of labels: the divisor of the losses of an update whose gradient is to be that of one larger batch."""

from collections.abc import Sequence
from inspect import signature

import torch
from torch import Tensor

from shared.errors import ConfigError, DataError, ModelError
from shared.factory import Allowed, load_factory
from shared.model.features import Features
from shared.model.spec import TensorSpec
from shared.registry import LOSSES, Argument, Labels, LossConfig
from shared.training.losses.labels import LEFT_OUT, BatchLabels, label_tensors
from shared.training.recipe import Recipe

COUNTS = TensorSpec((2,), torch.float64)
"""The counts of a batch: its own, and that of all batches of its update."""


def counts_of(loss: LossConfig, update: Sequence[BatchLabels]) -> list[Tensor]:
    """Count the labels of each batch of an update; see `COUNTS`. Raises DataError for a class that has no weight."""
    own = [_count(loss, label_tensors(labels)) for labels in update]
    whole = sum(own)
    return [torch.tensor([count, whole], dtype=COUNTS.dtype) for count in own]


def check_counted(recipe: Recipe, allowed: Allowed | None) -> None:
    """Refuse a function of a user's own that only gives a mean, where a sum is wanted.

    allowed: see `load_factory`, which raises the same; ConfigError for such a function.
    """
    if recipe.mean == "batch" or (loss := recipe.loss).name in LOSSES:
        return
    function = load_factory(loss.name, key="training.loss", allowed=allowed)
    try:
        takes_it = "reduction" in signature(function).parameters
    except (TypeError, ValueError) as cause:
        raise ModelError(f"loss {loss.name!r} does not say what it takes: {cause}") from cause
    if not takes_it:
        raise ConfigError(
            f'training.mean is "token", and loss {loss.name!r} gives a mean of unknown count; let the function take '
            'reduction, and return the sum for reduction="sum", or set training.mean = "batch"'
        )


def _count(loss: LossConfig, labels: Features) -> float:
    """Return what torch divides the sum of a batch's losses by. Of a user's own loss the first tensor of labels counts."""
    first = labels[0]
    if first.is_floating_point() or loss.labels is Labels.ALIKE:
        of_classes = (
            loss.labels is Labels.CLASSES and first.dim() > 1
        )  # probabilities of each, one sample's are one label
        return first.numel() // first.shape[1] if of_classes else first.numel()
    counting = first[first != LEFT_OUT]
    weighs = [key for key, argument in loss.arguments.items() if argument is Argument.CLASSES]
    if not weighs:
        return counting.numel()
    weights = torch.tensor(loss.kwargs[weighs[0]], dtype=torch.float64)
    if counting.numel() and not 0 <= int(counting.min()) <= int(counting.max()) < len(weights):
        raise DataError(f"a label is no class of 0 to {len(weights) - 1}, for which training.loss gives a weight")
    return float(weights[counting.long()].sum())
