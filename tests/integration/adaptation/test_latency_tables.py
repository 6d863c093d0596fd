"""Latency tables of this device and of a trainer, and what a predictor makes of them, over a real socket."""

import pytest

from edge_agent.planning.prediction import contiguous, known_devices, reference_of, vector
from edge_agent.profiling.latency_table import measure_table
from shared.errors import ConfigError, PlanError, RefusedError
from tests.support.experiments import flags
from tests.support.latency import costs_of, table_of
from tests.support.running import edge_config, running_trainer
from tests.support.small_trainers import have_room_for

pytestmark = pytest.mark.usefixtures("one_thread")


def config(*more):
    return edge_config(*flags("cnn", "adam"), *more)


@pytest.mark.slow
async def test_every_run_of_blocks_is_measured_here_and_at_a_trainer():
    async with running_trainer() as server:
        trainers = f'trainers=[{{name="near", address="{server.address}"}}, {{name="far", address="127.0.0.1:1"}}]'
        tables = {worker: await measure_table(config(trainers), worker, repeats=1) for worker in ("edge", "near")}
        assert not server.service.sessions, "nothing is left of it there"
    for worker, table in tables.items():
        assert (table.device, table.model) == (worker, "shared.model.zoo:residual_cnn")
        runs = [vector(*run, table.layers) for run in contiguous(table.layers)]
        assert [sample.layers for sample in table.samples] == runs
        assert len(table.reference) == 10
        assert table.flops is not None
        assert max(table.flops) > 1e5
    assert known_devices(tables).names == ("edge", "near")


@pytest.mark.parametrize("is_predicted", [False, True])
async def test_a_sub_model_that_a_trainer_has_no_room_for_is_left_out(monkeypatch, is_predicted):
    small = "model.kwargs={width=8, blocks=3}"
    devices = twins(await measure_table(config("trainers=[]", small), repeats=1)) if is_predicted else None
    have_room_for(monkeypatch, 1 if is_predicted else 4)
    async with running_trainer() as server:
        trainers = f'trainers=[{{name="near", address="{server.address}"}}]'
        measuring = measure_table(config(trainers, small), "near", 1, devices)
        if is_predicted:  # a request for those ten gets a notice
            with pytest.raises(RefusedError, match="MemoryError"):
                await measuring
            return
        table = await measuring
    assert table.layers == 5
    assert {sum(sample.layers) for sample in table.samples} == {1, 2, 3, 4}
    assert len(table.reference) == 10
    assert max(table.reference) < len(table.samples)


def twins(table):
    """A device and another like it, and so of one mind which ten tell most."""
    return known_devices({"a": table, "b": table.model_copy(update={"device": "b"})})


async def test_of_a_new_device_the_ten_that_tell_most_are_measured_and_the_others_predicted():
    measured = []
    whole = await measure_table(config("trainers=[]"), repeats=1, emit=measured.append)
    devices, again = twins(whole), []
    table = await measure_table(config("trainers=[]"), repeats=1, known=devices, emit=again.append)
    assert [table.samples[index].layers for index in table.reference] == reference_of(devices)
    assert {sample.layers for sample in table.samples} == {sample.layers for sample in whole.samples}
    assert (len(again), len(measured)) == (3 * 10, 3 * len(whole.samples)), "three rounds of each"


async def test_a_device_is_not_measured_for_the_devices_of_another_model():
    other = twins(table_of("other", costs_of(1)))
    with pytest.raises(PlanError, match=r"this configuration has model .*; the known devices have "):
        await measure_table(config("trainers=[]"), known=other)


async def test_who_is_not_configured_is_not_measured():
    with pytest.raises(ConfigError, match="--worker is 'gpu'; the workers of this configuration are edge, trainer"):
        await measure_table(config(), "gpu")


async def test_a_model_with_too_few_sub_models_for_a_reference_is_refused():
    few = edge_config(*flags("mlp", "sgd"), "model.kwargs={depth=3}", "trainers=[]")
    with pytest.raises(PlanError, match=r"6 sub-models of the model's 3 blocks can be measured here; .* needs 10"):
        await measure_table(few)
