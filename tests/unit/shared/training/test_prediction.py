"""The predicted weights: the way that the optimizer goes where no further gradient comes, and twice that of sgd."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parameters_to_vector

from shared.errors import ModelError
from shared.model.chain import build_chain
from shared.registry import POLICIES, OptimizerConfig
from shared.registry.corrections import momentum_of
from shared.registry.optimizers.sgd import LONG_DECAY, LONG_LEAD
from shared.training.optimizers.building import build_optimizer
from shared.training.policies import Replay, policy_by_name
from shared.training.prediction import predict, set_late_momentum
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import lone_stage
from tests.support.examples import examples
from tests.support.late_stages import BATCH, CPU, Declared, batch_of, build, gradient_of, recipe, stage_of
from tests.support.plain import assert_same_bits


@settings(max_examples=examples(60))
@given(st.just(0.0) | st.floats(0.05, 0.999), st.booleans(), st.integers(1, 8), st.integers(1, 5), st.integers(0, 99))
def test_with_momentum_alone_it_is_twice_the_way_of_updates_without_gradients(decay, nesterov, done, pending, seed):
    torch.manual_seed(seed)
    config = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=decay, nesterov=nesterov and decay > 0)
    parameter = nn.Parameter(torch.randn(7))
    optimizer = build_optimizer({"weight": parameter}, config)
    told = Recipe(optimizer=config, schedule=ScheduleConfig(), loss="mse", seed=0, steps_per_epoch=9, total_steps=99)
    momentum = momentum_of(config)
    assert momentum is not None
    for _ in range(done):
        parameter.grad = torch.randn(7)
        set_late_momentum(optimizer, momentum, is_late=True)
        optimizer.step()
    before, predicted = (parameter.detach().clone() for _ in range(2))
    predict(optimizer, momentum, told, [(parameter, predicted)], range(done, done + pending))
    for _ in range(pending):
        parameter.grad = torch.zeros(7)
        optimizer.step()
    torch.testing.assert_close(predicted - before, LONG_LEAD * (parameter.detach() - before))


@settings(max_examples=examples(12), deadline=None)
@given(st.floats(0.05, 0.97), st.booleans(), st.integers(0, 99))
def test_a_steady_gradient_moves_a_weight_as_fast_whether_it_comes_late_or_not(decay, nesterov, seed):
    """A block goes on as fast when its gradients begin to come late, and when they end to."""
    config = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=decay, nesterov=nesterov)
    momentum = momentum_of(config)
    assert momentum is not None
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer, gradient = build_optimizer({"weight": parameter}, config), torch.tensor([1.0, -2.0, 0.5]).double()
    late = [True] * 1500 + torch.randint(2, (40,), generator=torch.Generator().manual_seed(seed)).bool().tolist()
    for step, is_late in enumerate(late):
        before, parameter.grad = parameter.detach().clone(), gradient.clone()
        set_late_momentum(optimizer, momentum, is_late=is_late)
        optimizer.step()
        if step >= 1490:
            torch.testing.assert_close(before - parameter.detach(), 0.1 * gradient / (1 - decay), rtol=1e-4, atol=0)


def test_what_has_no_momentum_of_its_own_has_it_while_gradients_come_late_alone():
    config = OptimizerConfig(name="sgd", learning_rate=0.1)
    momentum = momentum_of(config)
    assert momentum is not None
    late, other, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = build_optimizer({"late": late, "other": other, "unused": unused}, config)
    for parameter in (late, other, unused):
        parameter.grad = torch.ones(2)
    set_late_momentum(optimizer, momentum, is_late=True)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full((2,), -0.1 * (1 - LONG_DECAY)))
    before = other.detach().clone()
    late.grad = unused.grad = None
    set_late_momentum(optimizer, momentum, is_late=False)
    optimizer.step()
    torch.testing.assert_close(other.detach() - before, torch.full((2,), -0.1))
    assert [momentum.key in optimizer.state[one] for one in (late, other, unused)] == [True, False, True]


GOING_ON = [
    OptimizerConfig(learning_rate=0.1, momentum=0.8),
    OptimizerConfig(name="adam", learning_rate=0.01, betas=(0.8, 0.9999)),
    OptimizerConfig(name="adamw", learning_rate=0.01, betas=(0.8, 0.9999), eps=1e-3),
    OptimizerConfig(name="rmsprop", learning_rate=0.01, momentum=0.7),
]


@pytest.mark.parametrize("optimizer", GOING_ON, ids=lambda optimizer: optimizer.name)
def test_a_prediction_is_along_the_updates_to_which_no_gradient_comes(optimizer):
    """Nearly so: the running mean of squares decays as well, and the bias of means is corrected less and less."""
    told = recipe(optimizer, staleness_correction="prediction")
    stage = stage_of(build("normed"), batch_of("normed", 0), told=told)
    replay = Replay(stage)
    for step in range(30):
        (feature,) = replay.forward(step, (batch_of("normed", step),))
        replay.backward(step, (gradient_of(step, feature),))
        stage.update(step, is_late=True)
    weights = [parameter for block in stage.blocks for parameter in block.module.parameters()]
    before = parameters_to_vector(weights)
    for step in (30, 31):
        stage.note_begun(step)
    likely = stage.predict_weights()
    assert likely is not None
    predicted = parameters_to_vector([weight for of_block in likely.values() for weight in of_block.values()])
    assert torch.equal(parameters_to_vector(weights), before), "the weights themselves do not move"
    for step in (30, 31):
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        stage.update(step, is_late=True)
    way = (LONG_LEAD if optimizer.name == "sgd" else 1.0) * (parameters_to_vector(weights) - before)
    assert (predicted - before - way).norm() < 0.05 * way.norm()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("pending", "moves"), [((), False), ((4,), False), ((5,), True), ((4, 5, 6), True)])
def test_only_updates_that_are_still_to_come_are_foreseen(policy, pending, moves):
    told = recipe(staleness_correction="prediction", accumulate_batches=2)
    stage = stage_of(build("normed"), batch_of("normed", 0), told=told)
    chosen = policy_by_name(policy)(stage)
    for step in range(4):
        (feature,) = chosen.forward(step, (batch_of("normed", step),))
        chosen.backward(step, (gradient_of(step, feature),))
        stage.update(step, is_late=True)
    for step in pending:
        stage.note_begun(step)
    assert (stage.predict_weights() is not None) == moves


def test_a_weight_that_two_blocks_use_is_predicted_alike_in_both():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight, second.bias = first.weight, first.bias
    chain = build_chain(nn.Sequential(first, second, nn.Linear(8, 3)), torch.randn(BATCH, 8))
    stage = lone_stage(chain, 0, 2, recipe(staleness_correction="prediction"), CPU)
    stash = policy_by_name("stash")(stage)
    for step in range(3):
        stash.forward(step, (batch_of("normed", step),))
        stash.backward(step, (torch.ones(BATCH, 8),))
        stage.update(step, is_late=True)
    stage.note_begun(3)
    likely = stage.predict_weights()
    assert likely is not None
    assert torch.equal(likely[0]["weight"], likely[1]["weight"])
    assert not torch.equal(likely[0]["weight"], first.weight)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("learns", ["nothing there", "frozen"])
def test_a_stage_in_which_nothing_learns_has_no_weights_to_predict(policy, learns):
    middle = nn.ReLU() if learns == "nothing there" else nn.Linear(8, 8).requires_grad_(False)
    chain = build_chain(Declared(nn.Linear(8, 8), middle, nn.Linear(8, 3)), torch.randn(BATCH, 8))
    stage = lone_stage(chain, 1, 2, recipe(staleness_correction="prediction"), CPU)
    chosen = policy_by_name(policy)(stage, input_gradient=True)
    for step in range(3):
        (feature,) = chosen.forward(step, (batch_of("normed", step),))
        assert feature.shape == (BATCH, 8)
    (gradient,) = chosen.backward(0, (torch.ones(BATCH, 8),))
    assert gradient is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_forward_on_predicted_weights_that_fails_leaves_those_of_now(policy):
    stage = stage_of(build("normed"), batch_of("normed", 0), told=recipe(staleness_correction="prediction"))
    chosen = policy_by_name(policy)(stage)
    for step in range(4):
        (feature,) = chosen.forward(step, (batch_of("normed", step),))
        if step < 3:
            chosen.backward(step, (gradient_of(step, feature),))
            stage.update(step, is_late=True)
    before = copy.deepcopy(stage.blocks[0].module.state_dict())
    with pytest.raises(ModelError):
        chosen.forward(4, (torch.randn(BATCH, 9),))
    assert_same_bits(before, stage.blocks[0].module.state_dict())


def test_blocks_of_one_worker_may_be_late_and_not_late_in_one_update():
    """A device may have the first blocks and the last: each is updated as if the others were not there."""
    told, gradients = recipe(staleness_correction="prediction"), torch.Generator().manual_seed(1)
    states = []
    for late in ((), (0, 1), (0,)):
        stage = stage_of(build("normed"), batch_of("normed", 0), told=told)
        gradients.manual_seed(1)
        for step in range(4):
            for block in stage.blocks:
                for parameter in block.module.parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=gradients)
            stage.held.update((0, 1), step, late=late)
            assert all(one.grad is None for block in stage.blocks for one in block.module.parameters())
        states.append([parameters_to_vector(block.module.parameters()) for block in stage.blocks])
    soon, late, mixed = states
    assert torch.equal(mixed[0], late[0])
    assert torch.equal(mixed[1], soon[1])
    assert not torch.equal(late[0], soon[0])
    assert not torch.equal(late[1], soon[1])
