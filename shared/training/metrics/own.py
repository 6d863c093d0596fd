"""Metrics of a user's own: a function, a class, or one of torchmetrics, which is not imported here."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shared.errors import ModelError
from shared.training.metrics.metric import Metric, State, Sums, Value, as_number

_METHODS = ("update", "state", "merge", "value")


def own_metric(made_by: Callable[..., Any], kwargs: Mapping[str, Any]) -> Metric:
    """Make a metric of a function of the output and the labels, or of a class. Raises ModelError for what is neither."""
    if not isinstance(made_by, type):
        if hasattr(made_by, "update"):
            raise ModelError("is an object that counts; name its class, so that each evaluation has one of its own")
        return _Averaged(partial(made_by, **kwargs))
    made = made_by(**kwargs)
    if hasattr(made, "metric_state") and hasattr(made, "compute"):
        return OfTorchmetrics(made)
    if lacking := [name for name in _METHODS if not callable(getattr(made, name, None))]:
        raise ModelError(f"is a class without {' and '.join(lacking)}; it must have {', '.join(_METHODS)}")
    metric: Metric = made
    return metric


class _Averaged(Sums):
    """The mean over samples of a function's numbers, each for a batch or a part of one."""

    def __init__(self, function: Callable[[Value, Value], Any]) -> None:
        super().__init__()
        self._function = function

    def update(self, output: Value, labels: Value) -> None:
        """Count a batch."""
        first = output[0] if isinstance(output, tuple) else output
        self.add(total=as_number(self._function(output, labels)) * len(first), all=len(first))

    def value(self) -> float:
        """Return the mean."""
        total, count = self.sums("total", "all")
        return float(total / count)


class OfTorchmetrics:
    """A `torchmetrics.Metric`. Several merge as its own synchronisation merges those of several processes."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._is_merged = False

    def update(self, output: Value, labels: Value) -> None:
        """Count a batch, on the output's device."""
        first = output[0] if isinstance(output, tuple) else output
        self._metric.to(first.device).update(output, labels)

    @property
    def held_bytes(self) -> int:
        """Count the bytes of all that it keeps, which may be all outputs and labels."""
        states = (state for part in self._parts for state in part.metric_state.values())
        return sum(one.nbytes for state in states for one in (state if isinstance(state, list) else [state]))

    @property
    def _parts(self) -> list[Any]:
        return [part for part in self._metric.modules() if hasattr(part, "metric_state")]

    def state(self) -> State:
        """Return its state. Raises ModelError where that is not in few numbers."""
        state: dict[str, Any] = self._metric.metric_state
        if not state or len(self._parts) > 1 or any(isinstance(each, list) for each in state.values()):
            raise ModelError("keeps more than a few numbers of all samples")
        return state

    def merge(self, states: Sequence[State]) -> None:
        """Go on from the states of all, with the reduction of each (its `dist_reduce_fx`)."""
        of_all = iter([[state[name] for state in states] for name in self._metric.metric_state])
        self._metric.dist_sync_fn = lambda _own, group=None: next(of_all)  # noqa: ARG005 - as torchmetrics calls it
        self._metric.distributed_available_fn = lambda: True
        self._is_merged = True

    def value(self) -> float:
        """Return its number. Raises ModelError where it has several."""
        if not self._is_merged:
            return as_number(self._metric.compute())
        with warnings.catch_warnings(action="ignore"):  # that nothing was counted
            return as_number(self._metric.compute())
