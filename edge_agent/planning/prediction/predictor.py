"""A predictor: known devices, from which the times of another device follow once ten of its own are measured.

Its file is safetensors (schema `isthmus.predictor/v1`): the sub-models and the log seconds of each device.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from edge_agent.planning.prediction.devices import FEWEST_DEVICES, MOST_CELLS, Floats, KnownDevices
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
from shared.errors import PlanError

SCHEMA = "isthmus.predictor/v1"
_MOST_FILE_BYTES = 16 * MOST_CELLS


class _Header(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    schema_name: Annotated[Literal["isthmus.predictor/v1"], Field(alias="schema")]
    model: Annotated[str, Field(min_length=1)]
    batch_size: PositiveInt
    devices: Annotated[tuple[str, ...], Field(min_length=FEWEST_DEVICES)]


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
    for what, known, found in (
        ("model", devices.model, table.model),
        ("batch_size", devices.batch_size, table.batch_size),
        ("layers", devices.layers_ML.shape[1], table.layers),
    ):
        if known != found:
            raise PlanError(
                f"the table of {table.device} has {what} {json.dumps(found)}; the known devices have {json.dumps(known)}"
            )
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


def predictor_to_bytes(devices: KnownDevices) -> bytes:
    """The file's content; `load_predictor` of it gives the same devices."""
    header = {
        "schema": SCHEMA,
        "model": devices.model,
        "batch_size": devices.batch_size,
        "devices": list(devices.names),
    }
    tensors: dict[str, NDArray[Any]] = {"layers": devices.layers_ML, "log_seconds": devices.log_seconds_DM}
    return safetensors.numpy.save(tensors, metadata={"isthmus": json.dumps(header)})


def load_predictor(path: Path) -> KnownDevices:
    """The predictor in a file. Raises PlanError when it cannot be read or holds anything wrong."""
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise PlanError(f"{path}: the predictor has more than {_MOST_FILE_BYTES} bytes")
        with safetensors.safe_open(path, framework="numpy") as file:
            header = _Header.model_validate_json((file.metadata() or {}).get("isthmus", ""))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        layers: NDArray[np.uint8] = _tensor(tensors, "layers", np.uint8, 2)
        logs: Floats = _tensor(tensors, "log_seconds", np.float64, 2)
    except OSError as cause:
        raise PlanError(f"{path}: the predictor cannot be read: {cause.strerror or cause}") from cause
    except (safetensors.SafetensorError, ValueError, TypeError) as cause:
        raise PlanError(f"{path}: this is no predictor that `edge-agent predictor train` has written") from cause
    if layers.size == 0 or layers.max() > 1 or logs.shape != (len(header.devices), len(layers)) or not _plausible(logs):
        raise PlanError(f"{path}: the tensors of the predictor do not fit each other; train it again")
    return KnownDevices(header.model, header.batch_size, header.devices, layers, logs)


def _tensor(tensors: dict[str, NDArray[Any]], name: str, kind: type[np.generic], dimensions: int) -> NDArray[Any]:
    """Raises ValueError where it is missing or of another kind."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != kind or tensor.ndim != dimensions:
        raise ValueError(f"{name} is not what it should be")
    return tensor


def _plausible(logs_DM: Floats) -> bool:
    """Tell whether each device and sub-model has some time, and each is one that a table may have."""
    inside = (logs_DM >= np.log(SHORTEST_SECONDS) - 1e-6) & (logs_DM <= np.log(LONGEST_SECONDS) + 1e-6)
    return bool((inside | np.isnan(logs_DM)).all() and inside.any(axis=1).all() and inside.any(axis=0).all())
