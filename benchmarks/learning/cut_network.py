"""A network whose blocks are cut among workers in one process, trained epoch by epoch under schemes that change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from shared.execution.counted_batches import Batch
from shared.execution.split import Scheme, split_placement, split_session
from shared.model.chain import Chain
from shared.registry import codec_spec
from shared.training.losses import BatchLoss, whole_loss
from shared.training.recipe import Recipe


class CutNetwork:
    """A chain in training."""

    def __init__(
        self, chain: Chain, cuts: Sequence[int], recipe: Recipe, schemes: Mapping[int, Scheme], device: torch.device
    ) -> None:
        """schemes: each by the epoch from which on it holds; the first from epoch 0."""
        self.chain = chain
        """The blocks with the weights that are trained."""
        self._cuts, self._schemes = cuts, schemes
        self._scheme = schemes[0]
        self._steps_per_epoch = recipe.steps_per_epoch
        self._session = split_session(chain, cuts, recipe, self._scheme, device)

    def train_epoch(self, epoch: int, batches: Iterator[Batch]) -> Sequence[BatchLoss]:
        """Do the steps of an epoch; drained at its end, as where each epoch is evaluated. Returns the losses of the batches."""
        if epoch and epoch in self._schemes:
            self._change(self._schemes[epoch])
        first = epoch * self._steps_per_epoch
        return self._session.train(first, first + self._steps_per_epoch, batches)

    def evaluate(self, batches: Iterable[Batch]) -> BatchLoss:
        """Return the loss of all batches together, features compressed as in training."""
        return whole_loss([self._session.evaluate(*batch) for batch in batches])

    def evaluate_whole(self, batches: Iterable[Batch]) -> BatchLoss | None:
        """Return that of the model in one piece, features as they are, after the last epoch; None where that is the same."""
        if not codec_spec(self._scheme.codec).lossy:
            return None
        self._change(replace(self._scheme, codec="fp32"))
        return self.evaluate(batches)

    def _change(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self._session.change(split_placement(self.chain, self._cuts, scheme))
