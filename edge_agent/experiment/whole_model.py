"""The model as a whole, on this thread and in evaluation mode, with nothing between its blocks."""

from functools import partial

from edge_agent.data import Batch
from shared.execution.failures import computed_loss
from shared.model.chain import Chain
from shared.model.features import call_module
from shared.training.block_failures import failures_of
from shared.training.losses import BatchLoss, LossHead, label_tensors
from shared.training.metrics import Tally
from shared.training.precision import computing
from shared.training.recipe import Recipe


def judged_batch(chain: Chain, recipe: Recipe, head: LossHead, batch: Batch, tally: Tally | None) -> BatchLoss:
    """Return the loss of a batch, which metrics count. No gradient may be wanted. Raises ModelError, and as `Tally.update`."""
    features = batch.features
    with computing(recipe.base_precision), failures_of("the evaluation of", *chain.blocks):
        for block in chain.blocks:
            features = call_module(block.module.train(False), features)
    judged = partial(head.evaluate, features, batch.labels, tally)
    return computed_loss(judged, recipe.loss, features, label_tensors(batch.labels))
