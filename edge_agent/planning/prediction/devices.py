"""Known devices: the latency tables that a predictor stands on, as one matrix of log seconds.

M sub-models of L layers on D devices. Logarithms, because devices differ by factors: a device that is twice as slow at
everything is another one by a constant.
"""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.prediction.table import LatencyTable, Layers, check_alike
from shared.errors import PlanError

Floats = NDArray[np.float64]
_WIDEST_RATIO = 1e3
"""Bounds the ratio of a time to a device's typical one when times are weighed: one time of nothing must not decide all
costs."""
_RIDGE = 1e-10
"""Ridge of the normal equations, so that layers that always run together share their time."""
FEWEST_DEVICES = 2
MOST_CELLS = 20_000_000
"""Limit of a predictor's memory: sub-models times devices, or times layers."""


@dataclass(frozen=True)
class KnownDevices:
    """The measurements of several devices."""

    model: str
    batch_size: int
    names: tuple[str, ...]
    layers_ML: NDArray[np.uint8]
    """The sub-models, each once."""
    log_seconds_DM: Floats
    """Natural logarithms; NaN where a device was not measured."""

    def __post_init__(self) -> None:
        assert self.log_seconds_DM.shape == (len(self.names), len(self.layers_ML)), "one row a device"

    def check(self, whose: str, model: str, batch_size: int, layers: int) -> None:
        """Refuse to predict another model, batch size or length. PlanError, which says whose it is."""
        ours = {"model": self.model, "batch_size": self.batch_size, "layers": self.layers_ML.shape[1]}
        for what, found in {"model": model, "batch_size": batch_size, "layers": layers}.items():
            if ours[what] != found:
                raise PlanError(
                    f"{whose} has {what} {json.dumps(found)}; the known devices have {json.dumps(ours[what])}"
                )


def known_devices(tables: dict[str, LatencyTable]) -> KnownDevices:
    """Join tables. The keys name them in refusals.

    A sub-model that one table has twice counts with the mean. Raises PlanError for fewer than two devices, tables of
    other models, batch sizes or lengths, and more than memory holds.
    """
    if len(tables) < FEWEST_DEVICES:
        raise PlanError(f"a predictor learns from {FEWEST_DEVICES} devices or more; {len(tables)} table is given")
    check_alike(tables)
    first = next(iter(tables.values()))
    rows: dict[Layers, int] = {}
    for table in tables.values():
        for sample in table.samples:
            rows.setdefault(sample.layers, len(rows))
    if len(rows) * max(len(tables), first.layers) > MOST_CELLS:
        raise PlanError(
            f"{len(rows)} sub-models of {first.layers} layers on {len(tables)} devices are more than {MOST_CELLS} entries"
        )
    return KnownDevices(
        model=first.model,
        batch_size=first.batch_size,
        names=tuple(table.device for table in tables.values()),
        layers_ML=np.array(list(rows), dtype=np.uint8),
        log_seconds_DM=np.array([_log_seconds(table, rows) for table in tables.values()]),
    )


def _log_seconds(table: LatencyTable, rows: dict[Layers, int]) -> Floats:
    totals, counts = np.zeros(len(rows)), np.zeros(len(rows))
    for sample in table.samples:
        totals[rows[sample.layers]] += np.log(sample.seconds)
        counts[rows[sample.layers]] += 1
    with np.errstate(invalid="ignore"):
        return totals / counts


@dataclass(frozen=True)
class LayerCosts:
    """Seconds of a device as a constant and a sum over its layers, none of them below 0: the time if layers did not
    disturb each other."""

    constant_D: Floats
    costs_DL: Floats

    def log_seconds(self, layers_ML: NDArray[np.uint8]) -> Floats:
        """D x M: of any sub-models."""
        seconds = self.constant_D[:, None] + self.costs_DL @ layers_ML.T.astype(float)
        least = np.where(seconds > 0, seconds, np.inf).min(axis=1, keepdims=True)
        logs: Floats = np.log(np.maximum(seconds, np.where(np.isfinite(least), least, 1.0)))
        return logs


def layer_costs(layers_ML: NDArray[np.uint8], log_seconds_DM: Floats) -> LayerCosts:
    """Fit each device by least squares of relative errors."""
    rows_MP = np.hstack([np.ones((len(layers_ML), 1)), layers_ML.astype(float)])
    fitted = np.array([_fit(rows_MP, logs) for logs in log_seconds_DM])
    return LayerCosts(fitted[:, 0], fitted[:, 1:])


def _fit(rows_MP: Floats, log_seconds_M: Floats) -> Floats:
    from scipy.optimize import nnls  # only here: most commands have no use for it

    known = np.isfinite(log_seconds_M)
    level = np.mean(log_seconds_M[known])
    seconds = np.exp(log_seconds_M[known] - level)  # of order 1, so that the ridge means the same on every device
    weights = 1.0 / seconds.clip(1.0 / _WIDEST_RATIO, _WIDEST_RATIO)
    weighted = rows_MP[known] * weights[:, None]
    gram = weighted.T @ weighted
    root = np.linalg.cholesky(gram + _RIDGE * np.trace(gram) * np.eye(len(gram)))
    target = np.linalg.solve(root, weighted.T @ (seconds * weights))
    found, _ = nnls(root.T, target, maxiter=100 * len(gram))
    costs: Floats = found * np.exp(level)
    return costs


def filled(devices: KnownDevices, costs: LayerCosts) -> Floats:
    """Return D x M log seconds: measured ones, and the layers' sums where no measurement exists."""
    return np.where(np.isfinite(devices.log_seconds_DM), devices.log_seconds_DM, costs.log_seconds(devices.layers_ML))
