"""The metrics by name. They equal those of torchmetrics that bear these names, and need no library."""

import math

import torch.nn.functional as F
from torch import Tensor

from shared.errors import ModelError
from shared.registry import Labels
from shared.training.metrics.metric import Sums, Value

_IGNORED_CLASS = -100


class _OfClasses(Sums):
    """A metric of the scores of classes, whose labels are class numbers; -100 counts for nothing."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._classes_last = labels is Labels.TOKENS

    def update(self, output: Value, labels: Value) -> None:
        """Count a batch. output: (B, C), (B, C, ...), or with a loss of tokens (B, ..., C); labels: int, the same without C."""
        if isinstance(output, tuple) or isinstance(labels, tuple) or labels.is_floating_point() or output.dim() < 2:
            raise ModelError(f"takes one output of scores and one tensor of class numbers{_shapes(output, labels)}")
        scores = output if self._classes_last else output.movedim(1, -1)
        if scores.shape[:-1] != labels.shape:
            raise ModelError(f"takes a class number for each place of scores{_shapes(output, labels)}")
        scores, classes = scores.flatten(0, -2), labels.flatten()
        counted = classes != _IGNORED_CLASS
        self.count(scores[counted], classes[counted])

    def count(self, scores: Tensor, classes: Tensor) -> None:
        """Count samples. scores: (N, C). classes: (N,), int64."""
        raise NotImplementedError


class _Share(_OfClasses):
    def value(self) -> float:
        """Return the share of right samples of all that count."""
        right, all_samples = self.sums("right", "all")
        return float(right / all_samples)


class Top1(_Share):
    """The share of samples whose label has the greatest score."""

    def count(self, scores: Tensor, classes: Tensor) -> None:
        """See `_OfClasses`."""
        right = scores.argmax(1) == classes
        self.add(right=right.sum(), all=len(right))


class Top5(_Share):
    """The share of samples whose label is among the five greatest scores."""

    def count(self, scores: Tensor, classes: Tensor) -> None:
        """See `_OfClasses`. Raises ModelError for fewer than five classes."""
        if scores.shape[1] < 5:
            raise ModelError(f"takes the scores of five classes or more; the output has {scores.shape[1]}")
        right = (scores.topk(5, dim=1).indices == classes.unsqueeze(1)).any(1)
        self.add(right=right.sum(), all=len(right))


class MacroF1(_OfClasses):
    """The mean over classes of the harmonic mean of precision and recall. Classes without label and answer are left out."""

    def count(self, scores: Tensor, classes: Tensor) -> None:
        """See `_OfClasses`."""
        answers, count = scores.argmax(1), scores.shape[1]
        right = answers[answers == classes]
        self.add(
            right=right.bincount(minlength=count),
            answered=answers.bincount(minlength=count),
            labelled=classes.bincount(minlength=count),
        )

    def value(self) -> float:
        """Return the mean."""
        right, answered, labelled = self.sums("right", "answered", "labelled")
        occurring = (answered + labelled) > 0
        return float((2 * right[occurring] / (answered + labelled)[occurring]).mean())


class Perplexity(_OfClasses):
    """The exponential of the mean cross entropy."""

    def count(self, scores: Tensor, classes: Tensor) -> None:
        """See `_OfClasses`."""
        self.add(
            entropy=F.cross_entropy(scores.float(), classes, reduction="sum"),
            all=len(classes),
        )

    def value(self) -> float:
        """Return the perplexity; infinity where it is none that a float has."""
        entropy, all_samples = self.sums("entropy", "all")
        mean = float(entropy / all_samples)
        return math.exp(mean) if mean < 700 else math.inf if mean == mean else math.nan


class _OfNumbers(Sums):
    """A metric of numbers, each with a label."""

    def __init__(self, _labels: Labels) -> None:
        super().__init__()

    def update(self, output: Value, labels: Value) -> None:
        """Count a batch of numbers of any shape with labels of the same."""
        if isinstance(output, tuple) or isinstance(labels, tuple) or output.shape != labels.shape:
            raise ModelError(f"takes one tensor of numbers and labels of its shape{_shapes(output, labels)}")
        self.count(output.double(), labels.double())

    def count(self, numbers: Tensor, labels: Tensor) -> None:
        """Count numbers of float64."""
        raise NotImplementedError


class MeanAbsoluteError(_OfNumbers):
    """The mean distance of a number from its label."""

    def count(self, numbers: Tensor, labels: Tensor) -> None:
        """See `_OfNumbers`."""
        self.add(distance=(numbers - labels).abs().sum(), all=numbers.numel())

    def value(self) -> float:
        """Return the mean."""
        distance, count = self.sums("distance", "all")
        return float(distance / count)


class R2(_OfNumbers):
    """The coefficient of determination: the mean over the numbers of a sample. Labels that do not vary have 0."""

    def count(self, numbers: Tensor, labels: Tensor) -> None:
        """See `_OfNumbers`."""
        numbers, labels = (each.reshape(len(each), -1) for each in (numbers, labels))
        self.add(
            error=(numbers - labels).square().sum(0),
            label=labels.sum(0),
            square=labels.square().sum(0),
            all=len(labels),
        )

    def value(self) -> float:
        """Return the mean of the coefficients."""
        error, label, square, count = self.sums("error", "label", "square", "all")
        spread = square - label.square() / count
        return float((1 - error / spread).where(spread > 0, 0.0).mean())


def _shapes(output: Value, labels: Value) -> str:
    of = [each if isinstance(each, tuple) else (each,) for each in (output, labels)]
    outputs, told = (" and ".join(f"{one.dtype} {tuple(one.shape)}" for one in each) for each in of)
    return f"; the output is {outputs}, the labels are {told}"
