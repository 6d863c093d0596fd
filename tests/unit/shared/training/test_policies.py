"""Replay and stash: the effect of a late gradient, compared with plain autograd on copies of the module."""

import copy
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state
from shared.model.zoo import residual_cnn
from shared.registry import POLICIES, OptimizerConfig
from shared.training.policies import KeptGraph, Replay, Stash, policy_by_name
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import Stage, lone_stage
from tests.support.examples import examples
from tests.support.late_stages import (
    BATCH,
    CPU,
    MODULES,
    OPTIMIZERS,
    SEED,
    batch_of,
    build,
    gradient_of,
    recipe,
    stage_of,
)
from tests.support.plain import assert_same_bits, plain_optimizer
from tests.support.plain_late import PlainEdge

pytestmark = pytest.mark.usefixtures("one_thread")


@st.composite
def orders(draw):
    """Draw the edge's calls under one K: whether K is 0, and (step, True) for a forward, (step, False) for a backward pass."""
    events, started, settled = [], 0, 0
    steps, limit = draw(st.integers(1, 7)), draw(st.integers(0, 3))
    while settled < steps:
        may_start = started < steps and started - settled <= limit
        if may_start and (started == settled or draw(st.booleans())):
            events.append((started, True))
            started += 1
        elif started > settled:
            events.append((settled, False))
            settled += 1
    return limit == 0, events


@settings(max_examples=examples(120), deadline=None)
@given(
    name=st.sampled_from(sorted(MODULES)),
    policy=st.sampled_from(sorted(POLICIES)),
    optimizer=st.sampled_from(OPTIMIZERS),
    correction=st.sampled_from(["none", "prediction"]),
    accumulated=st.sampled_from([1, 2]),
    order=orders(),
)
def test_any_order_gives_what_autograd_on_copies_gives(name, policy, optimizer, correction, accumulated, order):
    told = recipe(optimizer, staleness_correction=correction, accumulate_batches=accumulated)
    weights_stay, events = order
    stage = stage_of(build(name), batch_of(name, 0), told=told)
    ours = (KeptGraph if weights_stay else policy_by_name(policy))(stage)
    plain_module = build(name)
    blocks = plain_module.blocks() if name == "texts" else list(plain_module)
    plain = PlainEdge(blocks[:2], told, policy, is_late=not weights_stay)
    features = {}
    for step, goes_forward in events:
        if goes_forward:
            inputs = batch_of(name, step)
            (features[step],) = ours.forward(step, (inputs,))
            assert torch.equal(features[step], plain.forward(step, batch_of(name, step), weights_stay=weights_stay))
            assert torch.equal(inputs, batch_of(name, step)), "the samples are the user's and are not written to"
        else:
            gradient = gradient_of(step, features[step])
            ours.backward(step, (gradient,))
            stage.update(step, is_late=not weights_stay)
            plain.backward(step, gradient)
    expected = nn.ModuleList(blocks[:2]).state_dict()
    actual = nn.ModuleList([block.module for block in stage.blocks]).state_dict()
    assert_same_bits(expected, actual)


def traced_stage() -> tuple[Stage, Chain]:
    with random_state("residual"):
        module = residual_cnn(width=4, blocks=2, dropout=0.3)
    chain = build_chain(module, torch.zeros(BATCH, 1, 8, 8))
    return lone_stage(chain, 0, 2, recipe(), CPU), chain


@pytest.mark.parametrize("policy", POLICIES)
def test_with_no_update_in_between_a_policy_equals_the_kept_graph_bit_for_bit(policy):
    states = []
    for kind in (KeptGraph, policy_by_name(policy)):
        stage, chain = traced_stage()
        chosen = kind(stage)
        for step in range(4):
            with random_state("image", step):
                (feature,) = chosen.forward(step, (torch.randn(BATCH, 1, 8, 8),))
            chosen.backward(step, (gradient_of(step, feature),))
            stage.update(step)
        states.append(chain.module.state_dict())
    assert_same_bits(*states)


@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_are_those_of_the_first_forwards_in_their_order(policy):
    stage = stage_of(build("normed"), batch_of("normed", 0), cut=1)
    norm = stage.blocks[0].module[1]
    expected = copy.deepcopy(norm)
    seen: list[Tensor] = []
    first_forward = stage.blocks[0].module[0].register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    chosen = policy_by_name(policy)(stage)
    for step in range(4):
        chosen.forward(step, (batch_of("normed", step),))
    first_forward.remove()
    for step in range(4):
        chosen.backward(step, (torch.ones(BATCH, 8),))
        stage.update(step)
    assert len(seen) == 4
    for inputs in seen:
        expected(inputs)
    assert norm.num_batches_tracked == 4
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(norm, name), getattr(expected, name)), name


def test_the_replay_at_unchanged_weights_recomputes_the_feature_bit_for_bit():
    stage = stage_of(build("normed"), batch_of("normed", 0))
    outputs: list[Tensor] = []
    stage.blocks[-1].module.register_forward_hook(lambda _, __, output: outputs.append(output.detach().clone()))
    replay = Replay(stage)
    features = [replay.forward(step, (batch_of("normed", step),))[0] for step in range(2)]
    torch.rand(5)  # another user of random numbers
    replay.backward(0, (torch.ones_like(features[0]),))
    stage.update(0)
    assert torch.equal(outputs[2], features[0])
    assert not torch.equal(features[0], features[1])
    stage.held.load_block(0, {name: tensor.clone() for name, tensor in stage.held.block_tensors(0).items()})
    replay.backward(1, (torch.ones_like(features[1]),))
    stage.update(1)
    assert not torch.equal(outputs[3], features[1]), "the weights of now are not those of then"


class CountingBackwards(torch.autograd.Function):
    count = 0

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        CountingBackwards.count += 1
        return gradient


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return CountingBackwards.apply(self.linear(x))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("frozen", "backwards"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_frozen_blocks_have_no_backward(policy, frozen, backwards):
    module = nn.Sequential(nn.Sequential(Counted()), Counted(), Counted(), nn.Linear(8, 2))
    # A counter increases when a gradient passes it: to its own linear layer's parameters or to blocks before it.
    for parameter in (p for block in module[:frozen] for p in block.parameters()):
        parameter.requires_grad_(False)
    stage = lone_stage(build_chain(module, torch.zeros(BATCH, 8)), 0, 3, recipe(), CPU)
    chosen = policy_by_name(policy)(stage)
    frozen_before = copy.deepcopy(module[:frozen].state_dict())
    features = [chosen.forward(step, (batch_of("normed", step),))[0] for step in range(2)]
    CountingBackwards.count = 0
    if stage.trainable:
        chosen.backward(0, (torch.ones_like(features[0]),))
        stage.update(0)
    assert CountingBackwards.count == backwards
    assert_same_bits(frozen_before, module[:frozen].state_dict())


@pytest.mark.parametrize("kind", [KeptGraph, *map(policy_by_name, POLICIES)])
def test_an_edge_that_is_all_frozen_keeps_nothing_and_still_counts_its_statistics(kind):
    module = build("normed")
    module[:2].requires_grad_(False)
    chosen = kind(stage_of(module, batch_of("normed", 0)))
    for step in range(5):
        batch = batch_of("normed", step)
        kept = weakref.ref(batch)
        (feature,) = chosen.forward(step, (batch,))
        assert not feature.requires_grad
        del batch
        assert kept() is None
    assert module[0][1].num_batches_tracked == 5


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_history_holds_k_plus_one_inputs_and_no_activations(limit):
    stage = stage_of(build("normed"), batch_of("normed", 0))
    replay = Replay(stage)
    saved: list[Tensor] = []
    inputs = []
    for step in range(20):
        batch = batch_of("normed", step)
        inputs.append(weakref.ref(batch))
        if step > limit:
            replay.backward(step - limit - 1, (torch.ones(BATCH, 8),))
            stage.update(step - limit - 1)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda kept: kept):
            (feature,) = replay.forward(step, (batch,))
        gone = weakref.ref(feature)
        del feature, batch
        assert gone() is None
        kept = [number for number, batch in enumerate(inputs) if batch() is not None]
        assert kept == list(range(max(0, step - limit), step + 1))
    assert not saved


def test_stash_copies_the_weights_once_a_version_and_holds_none_when_drained(monkeypatch):
    copies, copy_weights = [], Stage.copy_weights

    def counted(stage):
        weights = copy_weights(stage)
        copies.append([weakref.ref(weight) for block in weights.values() for weight in block.values()])
        return weights

    monkeypatch.setattr(Stage, "copy_weights", counted)
    stage = stage_of(build("normed"), batch_of("normed", 0))
    stash = Stash(stage)
    for step in range(3):
        stash.forward(step, (batch_of("normed", step),))
    assert len(copies) == 1, "no update came between these forwards"
    stash.backward(0, (torch.ones(BATCH, 8),))
    stage.update(0)
    stash.forward(3, (batch_of("normed", 3),))
    assert len(copies) == 2
    for step in (1, 2, 3):
        stash.backward(step, (torch.ones(BATCH, 8),))
    assert all(weight() is None for version in copies for weight in version)


class Functional(nn.Module):
    """A module that reads its own parameter outside of any submodule. torch.fx makes a piece borrow it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x):
        return self.last(nn.functional.linear(self.first(x).relu(), self.weight, self.shift).relu())


@pytest.mark.parametrize("policy", POLICIES)
def test_parameters_read_outside_of_submodules_learn(policy):
    with random_state("functional"):
        module = Functional()
    plain = copy.deepcopy(module)
    chain = build_chain(module, torch.zeros(BATCH, 8))
    stage = lone_stage(chain, 0, len(chain.blocks), recipe(), CPU)
    chosen = policy_by_name(policy)(stage)
    outputs = [chosen.forward(step, (batch_of("normed", step),))[0] for step in range(2)]
    chosen.backward(0, (torch.ones_like(outputs[0]),))
    stage.update(0)
    plain(batch_of("normed", 0)).sum().backward()
    optimizer = plain_optimizer(plain, recipe().optimizer)
    optimizer.step()
    assert_same_bits(plain.state_dict(), module.state_dict())


def test_a_gradient_out_of_order_is_a_defect():
    replay = Replay(stage_of(build("normed"), batch_of("normed", 0)))
    features = [replay.forward(step, (batch_of("normed", step),))[0] for step in range(2)]
    with pytest.raises(AssertionError):
        replay.backward(1, (torch.ones_like(features[1]),))


def test_a_stage_of_no_blocks_hands_on_what_it_is_given():
    chain = build_chain(build("normed"), batch_of("normed", 0))
    stage = lone_stage(chain, 3, 3, recipe(), CPU)
    outputs, gradient = torch.randn(BATCH, 3), torch.randn(3, BATCH).t()
    for wanted in (True, False):
        graph = stage.forward(0, (outputs,), input_gradient=wanted)
        assert torch.equal(graph.outputs[0], outputs)
        (found,) = stage.backward(graph, (gradient,))
        stage.update(0)
        assert (found is not None) == wanted
        if found is not None:
            assert torch.equal(found, gradient)
            assert found.stride() == gradient.stride(), "strides choose kernels"
    assert torch.equal(stage.evaluate((outputs,))[0], outputs)
    assert not stage.trainable


def tripled(parameter: Tensor) -> None:
    """Triple a gradient once it has been added."""
    assert parameter.grad is not None
    parameter.grad.mul_(3)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_hooks_of_parameters_get_the_gradient_of_each_batch(policy):
    module, seen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), list[Tensor]()
    module[0].weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    module[0].bias.register_post_accumulate_grad_hook(tripled)
    recipe = Recipe(
        optimizer=OptimizerConfig(learning_rate=0.1),
        schedule=ScheduleConfig(),
        loss="cross_entropy",
        seed=SEED,
        steps_per_epoch=10,
        total_steps=10,
    )
    stage = lone_stage(build_chain(module, torch.zeros(BATCH, 8)), 0, 1, recipe, CPU)
    waiting, inputs, gradient = policy_by_name(policy)(stage), torch.randn(BATCH, 8), torch.randn(BATCH, 8)
    for step in range(2):
        waiting.forward(step, (inputs,))
    waiting.backward(0, (gradient,))
    assert torch.equal(seen[0], gradient.T @ inputs)
    assert torch.equal(module[0].weight.grad, 2 * seen[0])
    assert torch.equal(module[0].bias.grad, 3 * gradient.sum(0))
