"""The predicted weights: those that the optimizer itself comes to where no further gradient comes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shared.registry import OptimizerConfig
from shared.training.optimizers.building import build_optimizer
from shared.training.prediction import predict
from shared.training.recipe import Recipe, ScheduleConfig
from tests.support.examples import examples


@settings(max_examples=examples(60))
@given(st.floats(0.05, 0.99), st.booleans(), st.integers(1, 8), st.integers(1, 5), st.integers(0, 99))
def test_with_momentum_alone_it_is_where_updates_without_gradients_lead(momentum, nesterov, done, pending, seed):
    torch.manual_seed(seed)
    config = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=momentum, nesterov=nesterov)
    parameter = nn.Parameter(torch.randn(7))
    optimizer = build_optimizer({"weight": parameter}, config)
    for _ in range(done):
        parameter.grad = torch.randn(7)
        optimizer.step()
    predicted = parameter.detach().clone()
    told = Recipe(optimizer=config, schedule=ScheduleConfig(), loss="mse", seed=0, steps_per_epoch=9, total_steps=99)
    predict(optimizer, told, [(parameter, predicted)], range(done, done + pending))
    for _ in range(pending):
        parameter.grad = torch.zeros(7)
        optimizer.step()
    torch.testing.assert_close(predicted, parameter.detach())
