"""Latency tables of made-up devices, for tests of the predictor."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_agent.planning.prediction import LatencyTable, Sample, contiguous, representatives, table_to_json, vector

LAYERS = 8


def costs_of(kind: int, layers: int = LAYERS) -> np.ndarray:
    """Seconds of each layer on a device: kinds 0 to 9 differ in speed, and each of two sorts of layers in its own way."""
    generator = np.random.default_rng(5)
    base = generator.uniform(1e-3, 2e-2, layers)
    heavy = generator.integers(0, 2, layers)
    return base * (1.0 + 0.4 * kind) * np.where(heavy == 1, 1.0 + 0.15 * kind, 1.0)


def table_of(
    name: str, costs: Sequence[float] | np.ndarray, *, noise: float = 0.0, model: str = "chain", batch_size: int = 32
) -> LatencyTable:
    """All contiguous sub-models of layers that cost so much, with a reference spread over them. noise: of log seconds."""
    layers = len(costs)
    runs = [vector(first, stop, layers) for first, stop in contiguous(layers)]
    generator = np.random.default_rng(len(name))
    seconds = [float(np.dot(run, costs) * np.exp(noise * generator.standard_normal())) for run in runs]
    return LatencyTable(
        model=model,
        batch_size=batch_size,
        device=name,
        layers=layers,
        reference=tuple(representatives(seconds)),
        samples=tuple(Sample(layers=run, seconds=time) for run, time in zip(runs, seconds, strict=True)),
        flops=tuple(1e9 * cost for cost in costs_of(0, layers)),
    )


def write_table(folder: Path, table: LatencyTable) -> Path:
    """The table as a file."""
    path = folder / f"{table.device}.json"
    path.write_text(table_to_json(table))
    return path
