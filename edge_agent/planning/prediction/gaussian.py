"""The prediction of a new device, by the times of known ones and a few of its own: a mixture of Gaussian processes.

Every hypothesis is a Gaussian process on log seconds: around one centre (the mean of the known devices, or one of
them), with one strength of the known devices' variation, and one amount of noise. Under each, one of the device's own
measurements may be an accident. The hypotheses are weighed by the likelihood of the measurements under each, so a
device that is another one's twin is predicted as such, one of a kind of its own by the mean, and a noisy one is not
believed too much. Nothing is fitted by search, so it takes milliseconds and gives the same each time.

Shapes: M sub-models, D known devices, N measurements of the new one, H hypotheses, C = D + 1 centres, P features.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.prediction.devices import Floats, KnownDevices, filled, layer_costs
from edge_agent.planning.prediction.table import (
    LONGEST_SECONDS,
    REFERENCES,
    SHORTEST_SECONDS,
    LatencyTable,
    Layers,
    Sample,
    contiguous,
    vector,
)

STRENGTHS = (0.0, 0.003, 0.03, 0.3, 1.0, 3.0)
"""Shares of the way between known devices that one more device goes, as variances; 0 leaves one factor alone."""
OFFSETS = (1e-3, 9.0)
"""Variance of the factor to the centre: as fast as it, or any."""
NOISES = (1e-5, 1e-4, 4e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Variance of a measurement: 0.3 % to 17 %."""
COARSENESS = (0.0, 0.05)
"""Noise that a clock adds, as a share of the median measurement: short times are read less exactly."""
ACCIDENT_VARIANCE = 0.25
ACCIDENT_PRIOR = 0.05
RESIDUAL_WEIGHT = 0.2
"""Weight of the traits that devices share beyond their layers, against the prediction by the layers."""
SHARE_WEIGHT = 0.01
"""Layers that are dearer than on every known device."""
TEMPERATURE = 0.7
"""Below 1: ten measurements are believed a little less than independent ones would be."""


@dataclass(frozen=True)
class Measured:
    """The measurements of the new device."""

    indices_N: NDArray[np.intp]
    """Indices of the predicted sub-models that were measured."""
    log_seconds_N: Floats


class DeviceModel:
    """Predicts sub-models, known ones and others."""

    def __init__(self, devices: KnownDevices, layers_ML: NDArray[np.uint8]) -> None:
        """layers_ML: the sub-models to predict; those of `devices` come first in it, in their order."""
        costs = layer_costs(devices.layers_ML, devices.log_seconds_DM)
        known, smooth_DM = len(devices.layers_ML), costs.log_seconds(layers_ML)
        self.log_seconds_DM = smooth_DM.copy()
        """Log seconds of the known devices: measured where they were, predicted by the layers elsewhere."""
        self.log_seconds_DM[:, :known] = filled(devices, costs)
        level_D1 = self.log_seconds_DM.mean(axis=1, keepdims=True)
        smooth_DM = smooth_DM - smooth_DM.mean(axis=1, keepdims=True)
        centred_DM = self.log_seconds_DM - level_D1
        mean_M = centred_DM.mean(axis=0)
        relative_D1 = np.exp(level_D1)
        shares_ML = np.hstack([np.ones((len(layers_ML), 1)), layers_ML.astype(float)]) * np.concatenate(
            [[np.mean(costs.constant_D / relative_D1[:, 0])], np.mean(costs.costs_DL / relative_D1, axis=0)]
        )
        shares_ML /= np.maximum(shares_ML.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        devices_count = len(level_D1)
        self._features_MP = np.vstack(
            [
                (smooth_DM - smooth_DM.mean(axis=0)) / np.sqrt(devices_count),
                (centred_DM - mean_M) * np.sqrt(RESIDUAL_WEIGHT / devices_count),
                (shares_ML - shares_ML.mean(axis=0)).T * np.sqrt(SHARE_WEIGHT),
            ]
        ).T
        self._centres_CM = np.vstack([mean_M, self.log_seconds_DM])

    def predict(self, measured: Measured) -> Floats:
        """Log seconds of all M sub-models on the new device; of those that were measured too."""
        kernel_MN = self._features_MP @ self._features_MP[measured.indices_N].T
        residual_CN = measured.log_seconds_N - self._centres_CM[:, measured.indices_N]
        weights_C, coefficients_N, offset = _weigh(kernel_MN[measured.indices_N], residual_CN, measured.log_seconds_N)
        predicted: Floats = weights_C @ self._centres_CM + kernel_MN @ coefficients_N + offset
        return predicted

    def most_telling(self, measured: NDArray[np.intp], candidates: NDArray[np.intp], count: int) -> list[int]:
        """List the candidates to measure next: each time the one whose time would tell most of all others.

        It depends on which were measured and not on their times. As many as there are, where fewer than `count` are left.
        """
        noise = float(np.median(NOISES))
        features = np.hstack([self._features_MP, np.ones((len(self._features_MP), 1))])
        covariance = np.eye(features.shape[1])
        for index in measured:
            covariance = _observe(covariance, features[index], noise)
        chosen: list[int] = []
        left = list(dict.fromkeys(int(index) for index in candidates))
        second_moment = features.T @ features
        while left and len(chosen) < count:
            spread_KP = features[left] @ covariance
            gains = ((spread_KP @ second_moment) * spread_KP).sum(axis=1) / (
                (spread_KP * features[left]).sum(axis=1) + noise
            )
            best = left.pop(int(np.argmax(gains)))
            chosen.append(best)
            covariance = _observe(covariance, features[best], noise)
        return chosen


def _observe(covariance: Floats, feature_P: Floats, noise: float) -> Floats:
    along = covariance @ feature_P
    reduced: Floats = covariance - np.outer(along, along) / (feature_P @ along + noise)
    return reduced


def _weigh(kernel_NN: Floats, residual_CN: Floats, log_seconds_N: Floats) -> tuple[Floats, Floats, float]:
    """Return the mixture's mean as one linear form: weights of the centres, and of the kernel's columns, and a constant."""
    centres, count = residual_CN.shape
    coarse_N = np.exp(-2.0 * (log_seconds_N - np.median(log_seconds_N)))
    settings = list(product(STRENGTHS, OFFSETS, NOISES, COARSENESS))
    strength_H, offset_H, noise_H, coarse_H = np.array(settings).T
    covariances = strength_H[:, None, None] * kernel_NN + offset_H[:, None, None]
    diagonal = np.arange(count)
    covariances[:, diagonal, diagonal] += noise_H[:, None] + coarse_H[:, None] ** 2 * coarse_N
    inverse_HNN = np.linalg.inv(covariances)
    weights_HCN = np.einsum("hij,cj->hci", inverse_HNN, residual_CN)
    evidence_HC = -0.5 * np.einsum("ci,hci->hc", residual_CN, weights_HCN)
    evidence_HC -= 0.5 * np.linalg.slogdet(covariances)[1][:, None]
    # An accident at n adds a variance there, a change of rank one: no further inverse is needed.
    accident_HN = 1.0 / ACCIDENT_VARIANCE + inverse_HNN[:, diagonal, diagonal]
    evidence_HCN = (
        evidence_HC[:, :, None]
        + 0.5 * weights_HCN**2 / accident_HN[:, None, :]
        - 0.5 * np.log(ACCIDENT_VARIANCE * accident_HN)[:, None, :]
    )
    everything = np.concatenate([evidence_HC[:, :, None], evidence_HCN], axis=2) * TEMPERATURE
    everything[:, :, 1:] += np.log(ACCIDENT_PRIOR)
    everything[:, 1:] -= np.log(centres - 1)
    everything[offset_H < 1.0, 0] = -np.inf  # the mean of all devices has no speed of its own
    shares = np.exp(everything - everything.max())
    shares /= shares.sum()
    # Under an accident at n the weights lose its share of the inverse.
    lost_HCN = shares[:, :, 1:] * weights_HCN / accident_HN[:, None, :]
    mean_HN = np.einsum("hc,hcn->hn", shares.sum(axis=2), weights_HCN)
    mean_HN -= np.einsum("hn,hni->hi", lost_HCN.sum(axis=1), inverse_HNN)
    return shares.sum(axis=(0, 2)), strength_H @ mean_HN, float(offset_H @ mean_HN.sum(axis=1))


@dataclass(frozen=True)
class NewDevice:
    """A device's measurements among the sub-models that are asked for."""

    model: DeviceModel
    measured: Measured
    """All that its table has."""
    reference: NDArray[np.intp]
    """Indices of the measurements that its table calls the reference."""
    layers_ML: NDArray[np.uint8]


def new_device(devices: KnownDevices, table: LatencyTable, wanted: tuple[Layers, ...] = ()) -> NewDevice:
    """Put a table beside the known devices. wanted: sub-models to predict beside the known ones and the table's.

    Raises PlanError for a table of another model, batch size or length.
    """
    devices.check(f"the table of {table.device}", table.model, table.batch_size, table.layers)
    rows = {layers: index for index, layers in enumerate(map(tuple, devices.layers_ML.tolist()))}
    for layers in (*(sample.layers for sample in table.samples), *wanted):
        rows.setdefault(layers, len(rows))
    logs: dict[int, list[float]] = {}
    for sample in table.samples:
        logs.setdefault(rows[sample.layers], []).append(float(np.log(sample.seconds)))
    layers_ML = np.array(list(rows), dtype=np.uint8)
    return NewDevice(
        model=DeviceModel(devices, layers_ML),
        measured=Measured(np.array(list(logs), dtype=np.intp), np.array([np.mean(times) for times in logs.values()])),
        reference=np.array(list({rows[table.samples[index].layers]: None for index in table.reference}), dtype=np.intp),
        layers_ML=layers_ML,
    )


def complete(devices: KnownDevices, table: LatencyTable) -> LatencyTable:
    """The table with all contiguous sub-models: measured where it has them, predicted elsewhere. Raises PlanError."""
    runs = tuple(vector(first, stop, table.layers) for first, stop in contiguous(table.layers))
    device = new_device(devices, table, runs)
    predicted_M = np.exp(device.model.predict(device.measured)).clip(SHORTEST_SECONDS, LONGEST_SECONDS)
    rows = {layers: index for index, layers in enumerate(map(tuple, device.layers_ML.tolist()))}
    have = {sample.layers for sample in table.samples}
    added = tuple(Sample(layers=run, seconds=float(predicted_M[rows[run]])) for run in runs if run not in have)
    return table.model_copy(update={"samples": (*table.samples, *added)})


def reference_of(devices: KnownDevices) -> list[Layers]:
    """The ten sub-models to measure on a new device: those whose times tell most of all others, as the known devices go."""
    model = DeviceModel(devices, devices.layers_ML)
    chosen = model.most_telling(np.array([], dtype=np.intp), np.arange(len(devices.layers_ML)), REFERENCES)
    return [tuple(devices.layers_ML[index].tolist()) for index in chosen]
