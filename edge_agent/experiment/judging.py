"""Judges: one worker that computes the loss and the metrics of all samples, or several, each of its own.

Metrics are tried on a batch of the test set, before the first step: what its labels do not suit is said then.
"""

import torch

from edge_agent.data import Batch
from edge_agent.experiment.whole_model import judged_batch
from shared.errors import ModelError
from shared.model.chain import Chain
from shared.model.random_state import random_state
from shared.model.snapshot import unchanged
from shared.training.losses import LossHead
from shared.training.metrics import Metrics, load_metrics
from shared.training.recipe import Recipe

_NO_MEAN = "it is not the mean over the samples"
_OF_ALL = "it is the mean over all tokens of a batch, or by the weights of its classes"


def why_one_judge(chain: Chain, recipe: Recipe, test: Batch | None, *, whole_loss: bool) -> str:
    """Say why one worker has to have the last block for all samples, as the end of a sentence; empty where several may.

    test: a batch of the test set; None where there is none, and no metrics. whole_loss: whether a loss of the user's own has
    turned out to need all samples. The model stays as it is. Raises ModelError, which
    names the metric, for one that cannot be computed of the batch.
    """
    why = _NO_MEAN if whole_loss else "" if recipe.loss.is_divisible else _OF_ALL
    metrics = load_metrics(recipe, None)
    return why if metrics is None or test is None else _why_of(metrics, chain, recipe, test) or why


def _why_of(metrics: Metrics, chain: Chain, recipe: Recipe, test: Batch) -> str:
    tally = metrics.tally(batches=1)
    with unchanged(chain.module), random_state("metrics"), torch.no_grad():
        try:
            judged_batch(chain, recipe, LossHead(recipe.loss, None), test, tally)
        finally:
            for block in chain.blocks:
                block.module.train(chain.module.training)
    tally.values()
    try:
        tally.states()
    except ModelError as failure:
        return str(failure)
    return ""
