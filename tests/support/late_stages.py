"""Stages of small modules, each hard for a gradient that comes late in another way, with batches and gradients by step."""

from typing import Any

import torch
from torch import Tensor, nn

from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.model.zoo import bilstm
from shared.registry import OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import Stage, lone_stage

BATCH, SEED = 6, 11
CPU = torch.device("cpu")


class Replacing(nn.Module):
    """A block that puts a new tensor in the place of its buffer at every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        y = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class Writing(nn.Module):
    """A block whose backward pass needs a buffer that its next forward pass writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.tied = nn.Module()
        self.tied.register_buffer("scale", self.scale)

    def forward(self, x):
        y = self.linear(x)
        if self.training:
            self.scale.mul_(0.9).add_(y.detach().abs().mean(0), alpha=0.1)
        return y * self.tied.scale


def normed() -> nn.Module:
    """Build a module with batch statistics and dropout."""
    first = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3))
    return nn.Sequential(first, nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8)), nn.Linear(8, 3))


def in_place() -> nn.Module:
    """Build a module whose first block writes to the samples."""
    first = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(8, 8), nn.Hardswish(inplace=True))
    return nn.Sequential(first, nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), nn.Linear(8, 3))


class Declared(nn.Sequential):
    """A module in which each layer is a block."""

    def blocks(self) -> list[nn.Module]:
        return list(self)


def handed_on() -> nn.Module:
    """Build a module whose first block hands the samples on to one that writes to them."""
    return Declared(nn.Flatten(), nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(8, 8)), nn.Linear(8, 3))


def with_buffers() -> nn.Module:
    """Build a module whose forwards replace a buffer and write to one."""
    return nn.Sequential(Replacing(), Writing(), nn.Linear(8, 3))


def partly_frozen() -> nn.Module:
    """Build a module of which some parameters do not learn."""
    module = normed()
    for parameter in (*module[0].parameters(), module[1][0].bias):
        parameter.requires_grad_(False)
    return module


def texts() -> nn.Module:
    """Build a module of token numbers."""
    return bilstm(vocabulary=9, embedding=4, hidden=3, layers=1, dropout=0.4)


MODULES = {make.__name__: make for make in (normed, in_place, handed_on, with_buffers, partly_frozen, texts)}
OPTIMIZERS = (
    OptimizerConfig(learning_rate=0.1, momentum=0.9, weight_decay=1e-3),
    OptimizerConfig(learning_rate=0.1, momentum=0.6, nesterov=True),
    OptimizerConfig(name="adam", learning_rate=0.01, clip_norm=0.05),
)


def recipe(optimizer: OptimizerConfig = OPTIMIZERS[0], **keys: Any) -> Recipe:
    """Return a recipe whose rate falls with each step."""
    schedule = ScheduleConfig(name="exponential", every="step", gamma=0.9)
    return Recipe(
        optimizer=optimizer, schedule=schedule, loss="mse", seed=SEED, steps_per_epoch=9, total_steps=99, **keys
    )


def build(name: str, seed: int = 0) -> nn.Module:
    """Build one of `MODULES`, with the weights of a seed."""
    with random_state(seed):
        return MODULES[name]()


def batch_of(name: str, step: int) -> Tensor:
    """Return the inputs of a step, for one of `MODULES`."""
    with random_state("batch", step):
        return torch.randint(9, (BATCH, 5)) if name == "texts" else torch.randn(BATCH, 8)


def gradient_of(step: int, feature: Tensor) -> Tensor:
    """Return the error gradient of a step."""
    with random_state("gradient", step):
        return torch.randn(feature.shape)


def stage_of(module: nn.Module, example: Tensor, cut: int = 2, told: Recipe | None = None) -> Stage:
    """Cut the first blocks of a module."""
    return lone_stage(build_chain(module, example), 0, cut, told or recipe(), CPU)
