"""Failures of a block in training, as the user is told them."""

import pytest
import torch
from torch import nn

from shared.errors import ModelError
from shared.model.chain import build_chain
from shared.registry import LossConfig, OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import lone_stage

RECIPE = Recipe(
    optimizer=OptimizerConfig(learning_rate=0.1),
    schedule=ScheduleConfig(),
    loss=LossConfig(name="cross_entropy"),
    seed=0,
    steps_per_epoch=1,
    total_steps=1,
)


def test_a_number_beyond_an_embedding_that_comes_after_the_first_batch_is_told_its_size():
    module = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(8, 2))
    stage = lone_stage(build_chain(module, torch.zeros(4, 2, dtype=torch.int64)), 0, 3, RECIPE, torch.device("cpu"))
    stage.forward(0, (torch.full((4, 2), 49),), input_gradient=False)
    with pytest.raises(ModelError, match=r"block '0' failed with IndexError: .*; its embeddings have 50 rows: let"):
        stage.forward(0, (torch.full((4, 2), 50),), input_gradient=False)


def test_another_failure_of_a_block_has_no_advice():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    stage = lone_stage(build_chain(module, torch.zeros(4, 3)), 0, 2, RECIPE, torch.device("cpu"))
    with pytest.raises(ModelError, match="block '0' failed with") as failure:
        stage.forward(0, (torch.zeros(4, 5),), input_gradient=False)
    assert "embeddings" not in str(failure.value)
