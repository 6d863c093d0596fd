"""The predictor: its results for known devices."""

import pytest

from edge_agent.planning.prediction import (
    complete,
    contiguous,
    known_devices,
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


@pytest.mark.parametrize(("what", "other"), [("model", "m2"), ("batch_size", 64)])
def test_another_model_or_batch_size_than_the_known_devices_is_refused(what, other):
    table = table_of("new", costs_of(3)).model_copy(update={what: other})
    with pytest.raises(PlanError, match=f"the table of new has {what} .*; the known devices have "):
        complete(known(0, 1), table)
