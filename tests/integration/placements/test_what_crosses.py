"""Messages on the wire under a placement: an ear at every trainer hears the crossings of its placement, and nothing
else."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch
from torch import nn

from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.training.losses import narrowed
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.experiments import flags
from tests.support.placement_kinds import BATCH_SIZE, INVERTED, RANGES, flags_of, permitted, running_trainers
from tests.support.running import edge_config
from tests.support.stand_ins.recording import recorded

STEPS = 4
CHOSEN = [
    *flags("mlp", "sgd"),
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    f"data.batch_size={BATCH_SIZE}",
    f"training.max_steps={STEPS}",
]
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32)
FEATURE, LABEL, GRADIENT = Role.ROLE_FEATURE, Role.ROLE_LABEL, Role.ROLE_ERROR_GRADIENT
CROSSES = {
    "two workers": {"near": {(FEATURE, 2), (LABEL, 4), (GRADIENT, 2)}},
    "labels stay": {"near": {(FEATURE, 1), (FEATURE, 3), (GRADIENT, 1), (GRADIENT, 3)}},
    INVERTED: {"near": {(FEATURE, 0), (FEATURE, 2), (GRADIENT, 2)}},
    "chain of three": {"near": {(FEATURE, 1), (GRADIENT, 1)}, "far": {(LABEL, 4), (FEATURE, 3), (GRADIENT, 3)}},
    "chain, and labels stay": {
        "near": {(FEATURE, 1), (GRADIENT, 1)},
        "far": {(FEATURE, 2), (GRADIENT, 2), (FEATURE, 3), (GRADIENT, 3)},
    },
}
"""Tensors that each trainer's listener hears, by the role and the number of the first block after it: from any
dialler."""
pytestmark = pytest.mark.usefixtures("one_thread")


@asynccontextmanager
async def ears():
    """All trainers, each heard; the addresses at which agents and other trainers reach them."""
    async with running_trainers() as servers, AsyncExitStack() as open_ears:
        heard = {
            name: await open_ears.enter_async_context(recorded(server.address)) for name, server in servers.items()
        }
        yield {name: address for name, (address, _) in heard.items()}, {name: ear for name, (_, ear) in heard.items()}


async def listen(kind, folder):
    """The ears of the trainers that have a part, after a whole run with evaluation, and its configuration."""
    async with ears() as (addresses, heard):
        config = edge_config(*CHOSEN, *flags_of(kind, addresses, folder), *permitted(kind, "mlp"))
        result = await run_training(config)
    assert result.summary.steps == STEPS
    assert result.summary.accuracy is not None
    assert not any(ear.messages for name, ear in heard.items() if name not in RANGES[kind]), (
        "who has no part is not asked"
    )
    return {name: ear for name, ear in heard.items() if name in RANGES[kind]}, Experiment(config)


def labels_of(experiment):
    """The labels of every batch of the training and of the evaluation, as bytes of every kind in which they might travel."""
    batches = [*experiment.loader.iterate(0, STEPS), *experiment.evaluation.iterate()]
    kinds = [batch.labels.to(kind) for batch in batches for kind in INTEGERS]
    return [labels.numpy().tobytes() for labels in kinds]


def first_step_of(experiment):
    """Return the bytes of one sample's features and error gradients at each block in the first step, the output's
    last."""
    (batch,) = experiment.loader.iterate(0, 1)
    features = [batch.inputs]
    for block in experiment.chain.blocks:
        features.append(block.module(features[-1]))
        features[-1].retain_grad()
    nn.functional.cross_entropy(features[-1], batch.labels).backward()
    gradients = [None if feature.grad is None else feature.grad[0].numpy().tobytes() for feature in features]
    return [feature[0].detach().numpy().tobytes() for feature in features], gradients


@pytest.mark.first_case
@pytest.mark.parametrize("kind", CROSSES)
async def test_each_listener_hears_what_the_placement_says_and_nothing_else(kind, tmp_path):
    heard, experiment = await listen(kind, tmp_path)
    for name, ear in heard.items():
        announced = {(frame.role, frame.block) for said in ear.link_messages for frame in said.frames}
        numbered = {(role, len(experiment.chain.blocks) if role == LABEL else block) for role, block in announced}
        assert numbered == CROSSES[kind][name]


@pytest.mark.parametrize("kind", ["labels stay", "chain, and labels stay"])
async def test_where_labels_stay_no_label_no_output_and_no_loss_is_heard_anywhere(kind, tmp_path):
    heard, experiment = await listen(kind, tmp_path)
    features, gradients = first_step_of(experiment)
    for ear in heard.values():
        assert not any(map(ear.heard, labels_of(experiment)))
        assert not ear.heard(features[-1])
        assert not ear.heard(gradients[-1]), "the output's error gradient tells the label"
        assert not any(done.samples or done.loss for said in ear.link_messages for done in said.dones)
        assert not ear.heard(features[0])
    assert heard["near"].heard(features[1]), "the ear hears what does cross"
    assert any(ear.heard(gradients[3]) for ear in heard.values())


async def test_an_ear_hears_labels_where_they_go(tmp_path):
    heard, experiment = await listen("chain of three", tmp_path)
    travelling = [narrowed(batch.labels).numpy().tobytes() for batch in experiment.loader.iterate(0, STEPS)]
    assert all(map(heard["far"].heard, travelling))
    assert not any(map(heard["near"].heard, labels_of(experiment))), "labels go to who computes the loss alone"


async def test_samples_are_heard_where_they_are_permitted_and_labels_stay_all_the_same(tmp_path):
    heard, experiment = await listen(INVERTED, tmp_path)
    features, _ = first_step_of(experiment)
    assert heard["near"].heard(features[0])
    assert not heard["near"].heard(features[-1])
    assert not any(map(heard["near"].heard, labels_of(experiment)))
