"""One training of a task, in one process: what is tested after each epoch, and how far weights move meanwhile."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.learning.cut_network import CutNetwork
from benchmarks.paper000.tasks import TASKS, Fewer
from edge_agent.data import Batch, BatchLoader, evaluation_batches
from shared.codec import FeedbackMode, seed_stochastic_rounding
from shared.execution.counted_batches import Batch as Fed
from shared.execution.split import Scheme
from shared.model.build import build_checked_chain
from shared.model.random_state import derive_seed
from shared.registry.corrections import StalenessCorrection
from shared.training.losses import BatchLabels

LATENESS = range(1, 9)
"""The K for which the change of the weights is measured."""
QUANTILES = (0.5, 0.9, 0.99)
DEVIATIONS = (4, 5, 6)
"""The K of paper 000's Fig. 4."""
LEAST_STEPS = max(LATENESS) + 1
"""The steps that show a change over the largest K."""


@dataclass(frozen=True)
class Training:
    """One training: all that its result depends on, but for the machine and this code, the tasks' recipes included.

    Stored results of a task whose recipe changes have to be removed by hand.
    """

    task: str
    size: str
    """One of `SIZES`."""
    epochs: int
    samples: int
    """Most samples of the training set; half as many are tested."""
    seed: int
    cut: int | None = None
    """Blocks on the device; None: all, which is the device alone."""
    staleness: tuple[tuple[int, int], ...] = ((0, 0),)
    """K, each from an epoch on."""
    codec: str = "fp32"
    """Codec of the features."""
    feedback: bool = True
    batch_size: int = 32
    correction: StalenessCorrection = "none"

    @property
    def alone(self) -> "Training":
        """The same on the device alone."""
        return Training(self.task, self.size, self.epochs, self.samples, self.seed, batch_size=self.batch_size)


class Evaluated(NamedTuple):
    """The test set after an epoch."""

    loss: float
    accuracy: float | None
    """Share that was right; None where there are no classes."""


@dataclass(frozen=True)
class Result:
    """The outcome of a training."""

    training: Training
    curve: tuple[Evaluated, ...]
    """By epoch; features are compressed as in training."""
    auc: float | None
    """Area under the receiver's curve of the model in one piece, after the last epoch, where the task asks for it."""
    rates: tuple[tuple[float, ...], ...] | None
    """Change of the weights' l1 norm over K steps, in percent (paper 000, Eq. 6): `QUANTILES` over all steps, for each K of
    `LATENESS`. None unless the device was alone, for `LEAST_STEPS` at least."""
    deviations: tuple[tuple[float, ...], ...] | None
    """Standard deviation of the difference of the weights over K steps, at the end of the first, the middle and the last epoch,
    for each K of `DEVIATIONS`. None like `rates`."""
    seconds: float
    """Wall clock, on a machine that did other things beside it."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Result":
        """Make the result of the fields of a stored one."""
        training = fields["training"]
        staleness = tuple(tuple(each) for each in training["staleness"])
        curve = tuple(Evaluated(*each) for each in fields["curve"])
        changes = {name: fields[name] and tuple(map(tuple, fields[name])) for name in ("rates", "deviations")}
        return cls(
            **{**fields, "training": Training(**{**training, "staleness": staleness}), "curve": curve, **changes}
        )


def run_training(training: Training, folder: Path, device: torch.device) -> Result:
    """Train and test. folder: of the data. Raises DataError and ModelError for data and packages that are missing."""
    started = time.monotonic()
    task = TASKS[training.task]
    train = Fewer(task.dataset(training.size, "train", folder), training.samples)
    test = Fewer(task.dataset(training.size, "test", folder), training.samples // 2)
    loader = BatchLoader(train, training.batch_size, training.seed, drop_last=True, workers=0)
    example = next(loader.iterate(0, 1)).inputs
    size, steps = task.sizes[training.size], loader.steps_per_epoch
    chain = build_checked_chain(size.factory, size.kwargs, training.seed, example, learning=task.learning)
    recipe = task.recipe(training.size, training.seed, training.epochs, steps, training.correction)
    cut = len(chain.blocks) if training.cut is None else training.cut
    seed_stochastic_rounding(derive_seed(training.seed, "codecs"))
    network = CutNetwork(chain, (cut,), recipe, _schemes(training), device)
    is_watched = training.cut is None and steps * training.epochs >= LEAST_STEPS
    changes = WeightChanges(chain.module, steps, training.epochs) if is_watched else None
    curve = []
    for epoch in range(training.epochs):
        batches = loader.iterate(epoch * steps, (epoch + 1) * steps)
        network.train_epoch(epoch, _fed(batches if changes is None else changes.watched(batches), device))
        tested = network.evaluate(_fed(evaluation_batches(test, training.batch_size), device))
        accuracy = None if tested.correct is None else tested.correct / tested.samples
        curve.append(Evaluated(tested.loss, accuracy))
    batches = evaluation_batches(test, training.batch_size)
    return Result(
        training,
        tuple(curve),
        _auc(chain.module, _fed(batches, device)) if task.ranks else None,
        changes.rates() if changes else None,
        changes.deviations() if changes else None,
        round(time.monotonic() - started, 1),
    )


def _schemes(training: Training) -> Mapping[int, Scheme]:
    feedback = FeedbackMode.BATCH if training.feedback else FeedbackMode.OFF
    scheme = Scheme(codec=training.codec, feedback=feedback)
    return {epoch: replace(scheme, staleness=staleness) for epoch, staleness in training.staleness}


def _fed(batches: Iterable[Batch], device: torch.device) -> Iterator[Fed]:
    for batch in batches:
        features = tuple(each.to(device) for each in batch.features)
        yield features[0] if len(features) == 1 else features, batch.labels


class WeightChanges:
    """Measures how far weights move in a few steps of a training in which no gradient is late, as seen before each batch."""

    def __init__(self, module: nn.Module, steps_per_epoch: int, epochs: int) -> None:
        self._module = module
        self._norms: list[float] = []
        ends = [steps_per_epoch * epoch - 1 for epoch in (1, (epochs + 1) // 2, epochs)]
        self._ends = [max(max(DEVIATIONS), end) for end in ends]
        self._wanted = {end - distance for end in self._ends for distance in (0, *DEVIATIONS)}
        self._weights: dict[int, Tensor] = {}

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Hand on the batches of an epoch."""
        for batch in batches:
            weights = [parameter.detach() for parameter in self._module.parameters() if parameter.requires_grad]
            self._norms.append(float(torch.stack([weight.abs().sum() for weight in weights]).double().sum()))
            if batch.step in self._wanted:
                self._weights[batch.step] = torch.cat([weight.flatten() for weight in weights])
            yield batch

    def rates(self) -> tuple[tuple[float, ...], ...]:
        """See `Result.rates`."""
        norms = torch.tensor(self._norms, dtype=torch.float64)
        quantiles = torch.tensor(QUANTILES, dtype=torch.float64)
        changes = (100 * (norms[late:] - norms[:-late]).abs() / norms[:-late] for late in LATENESS)
        return tuple(tuple(change.quantile(quantiles).tolist()) for change in changes)

    def deviations(self) -> tuple[tuple[float, ...], ...]:
        """See `Result.deviations`."""
        return tuple(
            tuple(float((self._weights[end] - self._weights[end - late]).std()) for late in DEVIATIONS)
            for end in self._ends
        )


@torch.no_grad()
def _auc(module: nn.Module, batches: Iterable[Fed]) -> float:
    """Return how often a sample of class 1 is ranked above one of class 0; a tie counts half."""
    module.eval()
    scores, labels = [], []
    for inputs, told in batches:
        output = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
        scores.append(output[:, 1] - output[:, 0])
        labels.append(_one(told))
    return area_under_curve(torch.cat(scores).cpu(), torch.cat(labels))


def _one(labels: BatchLabels) -> Tensor:
    assert isinstance(labels, Tensor), "of a task whose answers are ranked"
    return labels


def area_under_curve(scores_N: Tensor, labels_N: Tensor) -> float:
    """Return the share of pairs of a positive and a negative sample whose scores are in this order; NaN without either."""
    positive, negative = scores_N[labels_N == 1].contiguous(), scores_N[labels_N == 0].sort().values
    below, up_to = (torch.searchsorted(negative, positive, right=right) for right in (False, True))
    return float((below + up_to).double().mean() / (2 * len(negative))) if len(negative) else float("nan")
