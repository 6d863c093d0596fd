"""Prediction of a device's times for parts of a model, from ten of them. Numbers and files: no torch, no gRPC, no
clock.

table.py is the file of one device, devices.py brings several together, and gaussian.py predicts another from them.
new_samples.py is for a device that has changed since it was measured.
"""

from edge_agent.planning.prediction.devices import Floats, KnownDevices, known_devices
from edge_agent.planning.prediction.gaussian import Measured, complete, reference_of
from edge_agent.planning.prediction.new_samples import ChangedDevice
from edge_agent.planning.prediction.table import (
    REFERENCES,
    LatencyTable,
    Layers,
    Sample,
    contiguous,
    load_table,
    representatives,
    table_to_json,
    vector,
)

__all__ = [
    "REFERENCES",
    "ChangedDevice",
    "Floats",
    "KnownDevices",
    "LatencyTable",
    "Layers",
    "Measured",
    "Sample",
    "complete",
    "contiguous",
    "known_devices",
    "load_table",
    "reference_of",
    "representatives",
    "table_to_json",
    "vector",
]
