"""The predictor: its results for known devices, and its file."""

import json

import numpy as np
import pytest
import safetensors.numpy

from edge_agent.planning.prediction import (
    complete,
    contiguous,
    known_devices,
    load_predictor,
    predictor_to_bytes,
    reference_of,
    vector,
)
from shared.errors import PlanError
from tests.support.latency import LAYERS, costs_of, table_of


def known(*kinds, noise=0.0):
    return known_devices({f"d{kind}": table_of(f"d{kind}", costs_of(kind), noise=noise) for kind in kinds})


def only_reference(table):
    samples = tuple(table.samples[index] for index in table.reference)
    return table.model_copy(update={"samples": samples, "reference": tuple(range(len(samples)))})


def test_a_table_with_its_reference_is_completed():
    table = table_of("new", costs_of(3))
    completed = complete(known(0, 1, 2, 4, 6), only_reference(table))
    truth = {sample.layers: sample.seconds for sample in table.samples}
    assert {sample.layers for sample in completed.samples} == {vector(*run, LAYERS) for run in contiguous(LAYERS)}
    assert completed.samples[:10] == only_reference(table).samples, "what was measured stays"
    assert all(sample.seconds == pytest.approx(truth[sample.layers], rel=0.05) for sample in completed.samples)


def test_the_reference_to_measure_is_ten_known_sub_models():
    devices = known(0, 1, 2, 4)
    chosen = reference_of(devices)
    assert len(set(chosen)) == 10
    assert set(chosen) <= set(map(tuple, devices.layers_ML.tolist()))


def test_a_predictor_is_read_as_it_was_written(tmp_path):
    devices, path = known(0, 1, 2), tmp_path / "p.safetensors"
    path.write_bytes(predictor_to_bytes(devices))
    loaded = load_predictor(path)
    assert (loaded.model, loaded.batch_size, loaded.names) == (devices.model, devices.batch_size, devices.names)
    assert np.array_equal(loaded.layers_ML, devices.layers_ML)
    assert np.array_equal(loaded.log_seconds_DM, devices.log_seconds_DM)


GOOD = {"layers": np.eye(3, dtype=np.uint8), "log_seconds": np.zeros((2, 3))}
HEADER = {"schema": "isthmus.predictor/v1", "model": "m", "batch_size": 1, "devices": ["a", "b"]}


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        (GOOD | {"layers": np.eye(4, dtype=np.uint8)}, HEADER),
        (GOOD | {"layers": 2 * np.eye(3, dtype=np.uint8)}, HEADER),
        (GOOD | {"layers": np.eye(3)}, HEADER),
        (GOOD | {"log_seconds": np.full((2, 3), np.nan)}, HEADER),
        (GOOD | {"log_seconds": np.full((2, 3), np.inf)}, HEADER),
        ({"layers": GOOD["layers"]}, HEADER),
        (GOOD, HEADER | {"devices": ["a"]}),
        (GOOD, HEADER | {"schema": "isthmus.profile/v1"}),
        (GOOD, {}),
    ],
)
def test_a_predictor_that_does_not_fit_is_refused(tensors, header, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"isthmus": json.dumps(header)}))
    with pytest.raises(PlanError, match=r"p\.safetensors: "):
        load_predictor(path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"\xff" * 8 + b"{}", b"PK\x03\x04 pickle"])
def test_a_file_that_is_no_predictor_is_refused(content, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="no predictor"):
        load_predictor(path)
