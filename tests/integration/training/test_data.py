"""Data of all kinds through real runs: small sets, numbers as labels, worker processes."""

import os

import pytest
import torch
from torch.nn import functional

from shared.errors import ExitCode
from tests.support.commands import agent_fails
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with
from tests.support.samples import sums

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = ['model.factory="shared.model.zoo:mlp"', "deployment.cut=1"]
SAMPLES = "tests.support.samples"


async def test_a_training_set_smaller_than_a_batch_is_trained_on_and_evaluated():
    chosen = [
        *MODEL,
        f'data.train={{factory="{SAMPLES}:FewDigits", kwargs={{count=20}}}}',
        f'data.test={{factory="{SAMPLES}:FewDigits", kwargs={{count=90}}}}',
        "data.drop_last=false",
        "training.epochs=2",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert result.summary.steps == 2
    assert result.summary.accuracy is not None


@pytest.mark.parametrize("dataset", ["sums", "PlainSums"])
async def test_a_model_learns_one_number_a_sample(dataset):
    chosen = [
        *MODEL,
        "model.kwargs={outputs=1}",
        f'data.train={{factory="{SAMPLES}:{dataset}"}}',
        f'data.test={{factory="{SAMPLES}:{dataset}"}}',
        "training.loss=mse",
        "training.epochs=3",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    values, labels = (torch.stack([torch.as_tensor(sample[part]) for sample in sums()]) for part in (0, 1))
    with torch.no_grad():
        expected = functional.mse_loss(result.module.eval()(values), labels.unsqueeze(1)).item()
    assert result.summary.test_loss == pytest.approx(expected, rel=1e-5)
    assert expected < labels.square().mean().item(), "labels that are cut to whole numbers are all 0"


@pytest.mark.slow
async def test_worker_processes_live_as_long_as_the_run(tmp_path):
    folders = {name: tmp_path / name for name in ("train", "test")}
    for folder in folders.values():
        folder.mkdir()
    chosen = [
        *MODEL,
        *(
            f'data.{name}={{factory="{SAMPLES}:WitnessedDigits", kwargs={{folder="{folder}"}}}}'
            for name, folder in folders.items()
        ),
        "data.workers=1",
        "training.epochs=3",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert result.summary.steps == 9
    readers = {name: {int(file.name) for file in folder.iterdir()} for name, folder in folders.items()}
    assert len(readers["train"] - {os.getpid()}) == 1, "over all epochs"
    assert len(readers["test"] - {os.getpid()}) == 1, "over all evaluations"


async def test_labels_of_ten_classes_take_a_byte_each():
    chosen = [
        *MODEL,
        "model.kwargs={hidden=16}",
        f'data.train={{factory="{SAMPLES}:FlatDigits"}}',
        "data.batch_size=32",
        "training.max_steps=5",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    feature_bytes, label_bytes = 32 * 16 * 4, 32
    assert result.summary.bytes_up == 5 * (feature_bytes + label_bytes)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


AUTOENCODER = [*MODEL, "model.kwargs={outputs=64}", "training.loss=mse", "training.max_steps=2"]
ITSELF = f'{{factory="{SAMPLES}:Itself"}}'


@pytest.mark.parametrize("place", ["train", "test"])
def test_labels_that_are_the_inputs_leave_only_with_permission(place):
    other = "test" if place == "train" else "train"
    sets = {place: ITSELF, other: f'{{factory="{SAMPLES}:Mixtures"}}'}
    agent_fails(
        ExitCode.DATA,
        f"data.{place}: the labels are the inputs themselves, so raw samples would go to the trainer; if it may see them, "
        'set privacy.inputs_to to ["trainer"]',
        flags=[*AUTOENCODER, *(f"data.{name}={factory}" for name, factory in sets.items())],
    )


async def test_an_autoencoder_is_trained_where_the_trainer_may_see_its_samples():
    chosen = [*AUTOENCODER, f"data.train={ITSELF}", f"data.test={ITSELF}", 'privacy.inputs_to=["trainer"]']
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert result.summary.steps == 2
