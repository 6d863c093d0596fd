"""The metrics of a recipe, and what of them one worker counts in one evaluation.

Where one worker judges all samples, values leave it, and else states, which others merge: sums, and never outputs or labels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from shared.bounds import MOST_METRIC_STATE_BYTES
from shared.errors import IsthmusError, ModelError, ProtocolError
from shared.factory import Allowed, load_factory
from shared.foreign import described, foreign_code
from shared.model.budget import BuildLimits, bounded_build
from shared.model.features import Features
from shared.registry import METRICS, Labels, MetricConfig
from shared.training.metrics.metric import Metric
from shared.training.metrics.own import own_metric
from shared.training.recipe import Recipe
from shared.training.state_file import deserialize, serialize

T = TypeVar("T")


class Judged(NamedTuple):
    """Results of one worker for all samples that it has judged, in the order of the recipe."""

    last_step: int
    values: tuple[float, ...] = ()
    """The values, where it has judged all samples."""
    states: tuple[bytes, ...] = ()
    """The states of the metrics as safetensors files, where others have judged some samples too."""


def load_metrics(
    recipe: Recipe, allowed: Allowed | None, most_bytes: int | None = None, limits: BuildLimits | None = None
) -> "Metrics | None":
    """Load the metrics of a recipe; None where it has none. The rest is as for `Metrics`."""
    return Metrics(recipe.metrics, recipe.loss.labels, allowed, most_bytes, limits) if recipe.metrics else None


class Metrics:
    """The metrics of a recipe, of which each evaluation makes its own."""

    def __init__(
        self,
        configs: Sequence[MetricConfig],
        labels: Labels,
        allowed: Allowed | None,
        most_bytes: int | None = None,
        limits: BuildLimits | None = None,
    ) -> None:
        """Import what the metrics are made of, and make each once.

        labels: that the loss takes. allowed: see `load_factory`. most_bytes: of all that they keep of the samples.
        limits: of making one. Raises ModelError, which names the metric.
        """
        self.names = tuple(config.shown_as for config in configs)
        self._most_bytes, self._limits = most_bytes, limits
        self._makers: list[Callable[[], Metric]] = []
        for config in configs:
            if config.name in METRICS:
                self._makers.append(partial(_named, METRICS[config.name], labels))
            else:
                made_by = load_factory(config.name, key="training.metrics", allowed=allowed)
                self._makers.append(partial(own_metric, made_by, config.kwargs))
        self.made()

    def made(self) -> list[Metric]:
        """Make each, with nothing counted. Raises ModelError, and TooLargeError beyond the limits."""
        with bounded_build(self._limits):
            return [_tried(name, make) for name, make in zip(self.names, self._makers, strict=True)]

    def tally(self, batches: int) -> "Tally":
        """Begin to count an evaluation of so many batches."""
        return Tally(self, batches - 1, self._most_bytes)

    def shown(self, values: Sequence[float]) -> dict[str, float]:
        """Return values by their names. Raises ProtocolError for too few or too many."""
        if len(values) != len(self.names):
            raise ProtocolError(f"the values of {len(values)} metrics were told; there are {len(self.names)}")
        return dict(zip(self.names, values, strict=True))

    def of_all(self, judged: Sequence[Judged]) -> dict[str, float]:
        """Return the values by their names, from what all workers have told that have judged samples; one or several.

        Raises ModelError, and ProtocolError for what no worker can have told.
        """
        if len(judged) == 1:
            return self.shown(judged[0].values)
        return self.shown(self.merged([one.states for one in judged]))

    def merged(self, states: Sequence[Sequence[bytes]]) -> list[float]:
        """Compute the values from the states of several workers. Raises as `of_all` does."""
        if any(len(of_worker) != len(self.names) for of_worker in states):
            raise ProtocolError("a worker that has judged samples has not told the states of all metrics")
        values = []
        for place, (name, metric) in enumerate(zip(self.names, self.made(), strict=True)):
            decoded = [deserialize(of_worker[place], MOST_METRIC_STATE_BYTES) for of_worker in states]
            _tried(name, partial(metric.merge, decoded))
            values.append(_tried(name, metric.value))
        return values


class Tally:
    """The metrics of one evaluation at one worker. Belongs to one thread."""

    def __init__(self, metrics: Metrics, last_step: int, most_bytes: int | None) -> None:
        """last_step: of the evaluation. most_bytes: see `Metrics`."""
        self.last_step = last_step
        self._metrics = list(zip(metrics.names, metrics.made(), strict=True))
        self._most_bytes = most_bytes

    def update(self, outputs: Features, labels: Features) -> None:
        """Count a batch, or a part of one; both as the loss takes them. Raises ModelError, which names the metric."""
        given = tuple(each[0] if len(each) == 1 else each for each in (outputs, labels))
        kept = 0
        with torch.no_grad(), torch.autocast(outputs[0].device.type, enabled=False):
            for name, metric in self._metrics:
                _tried(name, partial(metric.update, *given))
                if (
                    self._most_bytes is not None
                    and (kept := kept + _tried(name, partial(_bytes, metric))) > self._most_bytes
                ):
                    raise ModelError(
                        f"metric {name!r} would keep more than {self._most_bytes} bytes of samples (server.max_tensor_bytes, "
                        "and a sixteenth of server.max_session_bytes)"
                    )

    def values(self) -> list[float]:
        """Compute the values. Raises ModelError."""
        return [_tried(name, metric.value) for name, metric in self._metrics]

    def states(self) -> list[bytes]:
        """Return the states. Raises ModelError for a metric that cannot be merged with others, or has too many numbers."""
        states, left = list[bytes](), MOST_METRIC_STATE_BYTES
        for name, metric in self._metrics:
            states.append(_tried(name, partial(_state_file, metric)))
            if (left := left - len(states[-1])) < 0:
                raise ModelError(
                    f"metric {name!r} is one too many: states have {MOST_METRIC_STATE_BYTES} bytes in all at most"
                )
        return states

    def judged(self, *, alone: bool) -> Judged:
        """Return the result. alone: True if this worker has judged all samples. Raises ModelError."""
        if alone:
            return Judged(self.last_step, values=tuple(self.values()))
        return Judged(self.last_step, states=tuple(self.states()))


def _named(implementation: str, labels: Labels) -> Metric:
    metric: Metric = resolve_name(implementation)(labels)
    return metric


def _state_of(metric: Metric) -> Mapping[str, Tensor]:
    state = metric.state()
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError("has a state that is no dictionary of tensors, which is what state() must return")
    return state


def _state_file(metric: Metric) -> bytes:
    state = _state_of(metric)
    if (count := sum(tensor.nbytes for tensor in state.values())) > MOST_METRIC_STATE_BYTES:
        raise ModelError(f"has a state of {count} bytes; at most {MOST_METRIC_STATE_BYTES} go from worker to worker")
    return serialize(state)


def _bytes(metric: Metric) -> int:
    held: int | None = getattr(metric, "held_bytes", None)
    return sum(tensor.nbytes for tensor in _state_of(metric).values()) if held is None else held


def _tried(name: str, run: Callable[[], T]) -> T:
    """Run code of a metric. Raises ModelError, which names it."""

    def failure(cause: BaseException) -> BaseException:
        if isinstance(cause, ModelError):
            return ModelError(f"metric {name!r} {cause}")
        return (
            cause if isinstance(cause, IsthmusError) else ModelError(f"metric {name!r} failed with {described(cause)}")
        )

    with foreign_code(failure):
        return run()
