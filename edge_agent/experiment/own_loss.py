"""The trial of a user's own loss on a batch, before a trainer is asked."""

import torch

from edge_agent.data import Batch
from edge_agent.experiment.trial_state import tried
from shared.errors import ConfigError, IsthmusError
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


def check_own_loss(chain: Chain, recipe: Recipe, first: Batch) -> None:
    """Refuse a user's own loss that gives no number for a batch, and arguments with which it fails. The model stays as it is.
    Raises ModelError, and ConfigError for arguments."""
    loss = recipe.loss
    if loss.name in LOSSES:
        return
    head = LossHead(loss, None)

    def outputs() -> Features:
        features = first.features
        with torch.no_grad():
            for block in chain.blocks:
                features = call_module(block.module.train(), features)
        return features

    with unchanged(chain.module), random_state("loss"), computing(recipe.base_precision):
        try:
            made, _ = tried(outputs)  # where a block fails, training says why
        finally:
            for block in chain.blocks:
                block.module.train(chain.module.training)
        failure = None if made is None else tried(lambda: head.compute(_with_gradients(made), first.labels))[1]
    if isinstance(failure, IsthmusError):
        raise failure
    if failure is not None and loss.kwargs:  # without any, it may need other samples than the first
        raise ConfigError(f"loss {loss.name!r} fails with training.loss.kwargs: {described(failure)}") from failure


def _with_gradients(outputs: Features) -> Features:
    """Outputs that a loss may ask for gradients, and may change."""
    return tuple(one.requires_grad_().clone() if is_differentiable(one.dtype) else one for one in outputs)
