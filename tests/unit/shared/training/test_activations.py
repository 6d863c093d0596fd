"""Activation checkpoints: the bits are the same, and a forward keeps little beside the inputs of its blocks."""

import copy

import pytest
import torch
from torch import nn
from torch.profiler import profile

from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from shared.training.stage import lone_stage
from tests.support.plain import assert_same_bits

SAMPLES, WIDTH, BLOCKS = 256, 64, 6


class Writing(nn.Module):
    """Writes to its input, draws random numbers, and counts batches in buffers that a second forward would count twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layers = nn.BatchNorm1d(WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, value):
        """See above."""
        self.seen += 1
        for _ in range(4):
            value = self.layers(torch.tanh(value) * 1.5)
        return self.norm(value.relu_())


def stage_of(module, *, checkpoints):
    recipe = Recipe(
        optimizer=OptimizerConfig(learning_rate=0.1, momentum=0.9),
        schedule=ScheduleConfig(),
        loss="cross_entropy",
        seed=3,
        checkpoint_activations=checkpoints,
        steps_per_epoch=10,
        total_steps=10,
    )
    chain = build_chain(module, torch.zeros(8, WIDTH))
    return lone_stage(chain, 1, 1 + BLOCKS, recipe, torch.device("cpu"))


@pytest.fixture
def stages():
    """Two stages of equal blocks behind another one, without checkpoints of activations and with them."""
    with random_state("weights"):
        module = nn.Sequential(*(Writing() for _ in range(1 + BLOCKS)))
    return [stage_of(copy.deepcopy(module), checkpoints=checkpoints) for checkpoints in (False, True)]


def batch_of(step):
    with random_state("batch", step):
        return torch.randn(SAMPLES, WIDTH)


def test_checkpoints_of_activations_change_no_bit(stages):
    for step in range(4):
        found = []
        for stage in stages:
            graph = stage.forward(step, (batch_of(step),), input_gradient=True)
            (gradient,) = stage.backward(graph, (torch.cos(graph.outputs[0].detach()),))
            stage.update(step)
            found.append((graph.outputs[0].detach(), gradient))
        (plain, at_plain), (again, at_again) = found
        assert torch.equal(plain, again)
        assert torch.equal(at_plain, at_again)
    modules = [stage.held.chain.module for stage in stages]
    assert_same_bits(modules[0].state_dict(), modules[1].state_dict())
    assert [block.seen.item() for module in modules for block in module[1:]] == [4.0] * 2 * BLOCKS


def kept_bytes(stage):
    """Bytes that a forward has taken and not given back, its outputs included."""
    inputs = batch_of(0)
    stage.forward(0, (inputs.clone(),), input_gradient=True)
    with profile(profile_memory=True) as profiled:
        graph = stage.forward(0, (inputs,), input_gradient=True)
    assert graph.outputs
    return sum(event.self_cpu_memory_usage for event in profiled.key_averages())


def test_a_forward_with_checkpoints_keeps_at_most_two_fifths(stages):
    plain, again = map(kept_bytes, stages)
    assert again >= BLOCKS * SAMPLES * WIDTH * 4 / 2, "the inputs of the blocks stay"
    assert again <= 0.4 * plain
