"""The prediction of a device by known ones: its other times follow once ten of its own are measured."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.prediction.devices import KnownDevices
from edge_agent.planning.prediction.gaussian import DeviceModel, Measured
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
