"""The trial of a user's own loss on a batch, before a trainer is asked."""

from collections.abc import Callable

import torch

from edge_agent.data import Batch
from edge_agent.experiment.trial_state import tried
from shared.errors import ConfigError, IsthmusError, ModelError
from shared.foreign import described
from shared.model.chain import Chain
from shared.model.features import Features, call_module
from shared.model.random_state import random_state
from shared.model.snapshot import unchanged
from shared.model.spec import is_differentiable
from shared.registry import LOSSES
from shared.training.losses import LossHead
from shared.training.precision import computing
from shared.training.recipe import Recipe


def check_own_loss(chain: Chain, recipe: Recipe, first: Batch, read_others: Callable[[], Batch]) -> None:
    """Refuse a user's own loss that gives no number for a batch, and arguments with which it fails. The model stays as it is.
    Raises ModelError, and ConfigError for arguments.

    read_others: reads a batch to try arguments with that fail with the first one, whose samples may be of one kind.
    """
    loss = recipe.loss
    if loss.name in LOSSES:
        return
    head = LossHead(loss, None)
    with unchanged(chain.module), random_state("loss"), computing(recipe.base_precision):
        failure = _failure(chain, head, first)
        if failure is not None and loss.kwargs:
            failure = _failure(chain, head, read_others())
    if isinstance(failure, IsthmusError):
        raise failure
    if failure is not None and loss.kwargs:  # without any, it may need other samples than the first
        raise ConfigError(f"loss {loss.name!r} fails with training.loss.kwargs: {described(failure)}") from failure


def _failure(chain: Chain, head: LossHead, batch: Batch) -> BaseException | None:
    """Return what the loss of a batch raises. None too where a block fails: training says why."""

    def outputs() -> Features:
        features = batch.features
        with torch.no_grad():
            for block in chain.blocks:
                features = call_module(block.module.train(), features)
        return features

    try:
        made, _ = tried(outputs)
    finally:
        for block in chain.blocks:
            block.module.train(chain.module.training)
    if made is None:
        return None
    leaves = tuple(one.clone().requires_grad_(is_differentiable(one.dtype)) for one in made)
    _, failure = tried(lambda: head.compute(tuple(one.clone() for one in leaves), batch.labels))
    if failure is None and tried(lambda: head.compute(leaves, batch.labels))[1] is not None:
        return ModelError(
            f"loss {head.name!r} changes the output of the model in place, from which its gradient is taken; have it change "
            "a copy (`output.clone()`)"
        )
    return failure
