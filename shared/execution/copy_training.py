"""One copy of a model, trained for a calibration with both halves in one process, then judged.

Accuracy depends on the order of updates and on the loss of codecs, not on the link, so the link is left out. Knows
nothing of the source of batches, nor of the caller.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from shared.codec import seed_stochastic_rounding
from shared.execution.counted_batches import Batch
from shared.execution.split import Scheme, split_session
from shared.model.chain import Chain
from shared.model.random_state import derive_seed
from shared.registry.metrics import ACCURACY, LOSS
from shared.training.metrics import Metrics
from shared.training.recipe import Recipe

WARM_UP_STEPS = 2
TIMED_STEPS = 6
Batches = Iterable[Batch]
"""Inputs and labels."""


@dataclass(frozen=True)
class CopyTiming:
    """The durations of a copy on the machine that timed it, and the amount of work."""

    seconds_per_step: float
    seconds_per_judged_batch: float
    steps_per_epoch: int
    judged_batches: int
    figures: tuple[str, ...]
    """Names of the figures by which a copy is judged."""
    start_seconds: float = 0.0
    """From being asked to the first step, and from the last answer to being free again."""

    def seconds(self, epochs: float) -> float:
        """The time of one training of so many epochs, start and judging included."""
        steps = steps_of(epochs, self.steps_per_epoch)
        computing = steps * self.seconds_per_step + self.judged_batches * self.seconds_per_judged_batch
        return self.start_seconds + computing

    def started_within(self, seconds: float) -> "CopyTiming":
        """Return the same with the rest of the time that the timing took as a whole."""
        judged = min(TIMED_STEPS, self.judged_batches) * self.seconds_per_judged_batch
        timed = (WARM_UP_STEPS + TIMED_STEPS) * self.seconds_per_step + judged
        return replace(self, start_seconds=max(seconds - timed, 0.0))


def steps_of(epochs: float, steps_per_epoch: int) -> int:
    """The length of a training in steps; at least one."""
    return max(1, round(epochs * steps_per_epoch))


class Copy:
    """A copy that is trained as a scheme says. The chain's blocks are trained in place."""

    def __init__(
        self,
        chain: Chain,
        cut: int,
        recipe: Recipe,
        scheme: Scheme,
        device: torch.device,
        metrics: Metrics | None = None,
    ) -> None:
        """metrics: of the recipe, as they are loaded here."""
        self._metrics = metrics
        self._session = split_session(chain, (cut,), recipe, scheme, device)
        seed_stochastic_rounding(derive_seed(recipe.seed, "codecs"))

    def train(self, first_step: int, stop_step: int, batches: Batches) -> None:
        """Do these steps and drain, as an epoch's end does."""
        self._session.train(first_step, stop_step, iter(batches))

    def judge(self, batches: Batches) -> dict[str, float]:
        """Return the figures of an evaluation by name: loss, accuracy where the loss is of classes, and the metrics."""
        tally = None if self._metrics is None else self._metrics.tally(0)
        losses = [self._session.evaluate(inputs, labels, tally) for inputs, labels in batches]
        samples = sum(loss.samples for loss in losses)
        figures = {LOSS: sum(loss.loss * loss.samples for loss in losses) / samples}
        if all(loss.correct is not None for loss in losses):
            figures[ACCURACY] = sum(loss.correct or 0 for loss in losses) / samples
        if self._metrics is not None and tally is not None:
            figures |= self._metrics.shown(tally.values())
        return figures

    def timed(
        self, batches: Callable[[int, int], Batches], judged: Iterator[Batch]
    ) -> tuple[float, float, tuple[str, ...]]:
        """Mean seconds of a step, and of a batch that is judged, reading included; and the names of the figures.

        batches: those of the steps from one to another.
        """
        stop_step = WARM_UP_STEPS + TIMED_STEPS
        self.train(0, WARM_UP_STEPS, batches(0, WARM_UP_STEPS))
        began = time.monotonic()
        self.train(WARM_UP_STEPS, stop_step, batches(WARM_UP_STEPS, stop_step))
        trained = time.monotonic()
        count, figures = 0, dict[str, float]()
        for batch in itertools.islice(judged, TIMED_STEPS):
            figures = self.judge([batch])
            count += 1
        return (trained - began) / TIMED_STEPS, (time.monotonic() - trained) / count, tuple(figures)
