"""The trial of a user's own loss with its arguments, on a batch and before a trainer is asked."""

import torch

from edge_agent.data import Batch
from edge_agent.experiment.trial_state import tried
from shared.errors import ConfigError
from shared.foreign import described
from shared.model.chain import Chain
from shared.model.features import Features, call_module
from shared.model.random_state import random_state
from shared.model.snapshot import unchanged
from shared.registry import LOSSES
from shared.training.losses import LossHead
from shared.training.precision import computing
from shared.training.recipe import Recipe


def check_loss_arguments(chain: Chain, recipe: Recipe, first: Batch) -> None:
    """Refuse arguments with which a user's own loss fails on a batch. The model stays as it is. Raises ConfigError."""
    loss = recipe.loss
    if loss.name in LOSSES or not loss.kwargs:
        return
    head = LossHead(loss, None)

    def outputs() -> Features:
        features = first.features
        for block in chain.blocks:
            features = call_module(block.module.train(), features)
        return features

    with unchanged(chain.module), random_state("loss"), torch.no_grad(), computing(recipe.base_precision):
        try:
            made, _ = tried(outputs)  # where a block fails, training says why
        finally:
            for block in chain.blocks:
                block.module.train(chain.module.training)
        failure = None if made is None else tried(lambda: head.evaluate(made, first.labels))[1]
    if failure is not None:
        raise ConfigError(f"loss {loss.name!r} fails with training.loss.kwargs: {described(failure)}") from failure
