"""Tuples of tensors between blocks: with a cut through several, training equals that of the whole, bit for bit."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from shared.codec import FeedbackMode
from shared.execution.split import Scheme, split_session
from shared.model.random_state import random_state
from shared.registry import POLICIES
from shared.training.held_state import copy_state, put_back, states_in
from shared.training.losses import LossHead
from shared.training.measure import measure_stage
from shared.training.policies import BackwardPolicy, KeptGraph, Replay, policy_by_name
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from shared.training.stage import Stage, lone_stage
from shared.training.state_file import serialize
from tests.support.models.tuples import CLASSES, CUTS, WIDTH, Tupled, tupled, tupled_chain
from tests.support.plain import (
    assert_same_bits,
    plain_forward,
    plain_optimizer,
    plain_update,
)
from tests.support.plain_late import plain_split, steady_order

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, SEED, STEPS = 5, 3, 7
CPU = torch.device("cpu")
RECIPE = Recipe(
    optimizer=OptimizerConfig(learning_rate=0.1, momentum=0.9, clip_norm=0.5),
    schedule=ScheduleConfig(name="exponential", every="step", gamma=0.9),
    loss="cross_entropy",
    seed=SEED,
    steps_per_epoch=STEPS,
    total_steps=STEPS,
)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    with random_state("batch", step):
        return torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    return map(batch_of, range(STEPS))


def whole(steps: int = STEPS) -> dict[str, Tensor]:
    """Return the state of the module after plain training in one piece."""
    module = tupled().train()
    optimizer = plain_optimizer(module, RECIPE.optimizer)
    for step in range(steps):
        inputs, labels = batch_of(step)
        output = plain_forward(module.parts, SEED, step, inputs)
        assert isinstance(output, Tensor)
        nn.functional.cross_entropy(output, labels).backward()
        plain_update([part.parameters() for part in module.parts], optimizer, RECIPE, step)
    return module.state_dict()


def both(module: Tupled, cut: int) -> tuple[Stage, Stage]:
    """Build the two sides of a cut through `module`."""
    chain = tupled_chain(module, BATCH)
    return lone_stage(chain, 0, cut, RECIPE, CPU), lone_stage(chain, cut, len(chain.blocks), RECIPE, CPU)


def train(edge: Stage, cloud: Stage, kind: type[BackwardPolicy], steps: range) -> None:
    """Run steps of both sides in turn, with K = 0."""
    chosen, head = kind(edge), LossHead(RECIPE.loss, None)
    for step in steps:
        inputs, labels = batch_of(step)
        features = chosen.forward(step, (inputs,))
        graph = cloud.forward(step, features, input_gradient=True)
        gradients = cloud.backward(graph, head.gradient(graph.outputs, labels)[1])
        cloud.update(step)
        chosen.backward(step, gradients)
        edge.update(step)


@pytest.mark.parametrize("kind", [KeptGraph, *map(policy_by_name, POLICIES)])
@pytest.mark.parametrize("cut", CUTS)
def test_two_stages_train_as_the_whole_does(cut, kind):
    module = tupled()
    train(*both(module, cut), kind, range(STEPS))
    assert_same_bits(whole(), module.state_dict())


@pytest.mark.parametrize("kind", [KeptGraph, *map(policy_by_name, POLICIES)])
def test_the_cut_moves_and_both_sides_restart_without_changing_a_bit(kind):
    """Forward over a cut that three tensors cross, back over one that two cross, and again from a checkpoint of both sides."""
    edge, cloud = apart(1, seeds=(0, 1))
    cloud.held.hold(range(1, 4), {index: both(tupled(), 1)[1].held.block_tensors(index) for index in (1, 2, 3)})
    train(edge, cloud, kind, range(2))
    for cut, steps in ((3, range(2, 4)), (2, range(4, 5))):
        before = edge.stop
        leaving = {index: dict(cloud.held.block_tensors(index)) for index in range(before, cut)}
        coming = {index: dict(edge.held.block_tensors(index)) for index in range(cut, before)}
        edge.held.hold(range(cut), leaving)
        cloud.held.hold(range(cut, 4), coming)
        edge, cloud = Stage(edge.held, 0, cut), Stage(cloud.held, cut, 4)
        train(edge, cloud, kind, steps)
    restarted = apart(1, seeds=(2, 3))
    for old, new in zip((edge, cloud), restarted, strict=True):
        put_back(new.held, old.held.indices, states_in(serialize(copy_state(old.held))))
    restarted = Stage(restarted[0].held, 0, edge.stop), Stage(restarted[1].held, edge.stop, 4)
    train(*restarted, kind, range(5, STEPS))
    trained = {}
    for stage in restarted:
        for block in stage.blocks:
            trained |= block.named_parameters() | block.named_buffers()
    assert_same_bits(whole(), trained)


def apart(cut: int, seeds: tuple[int, int]) -> tuple[Stage, Stage]:
    """Build the two sides of a cut, each with a module of its own."""
    return both(tupled(seeds[0]), cut)[0], both(tupled(seeds[1]), cut)[1]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(),
        Scheme(2),
        Scheme(2, "stash"),
        Scheme(3, codec="uniform4", downlink_codec="bf16"),
        Scheme(1, "stash", FeedbackMode.LITERAL, "uniform2-channel", "uniform8"),
    ],
    ids=["in step", "late", "late, stash", "compressed", "compressed, stash"],
)
@pytest.mark.parametrize("fickle", [False, True])
def test_the_simulation_of_a_split_is_what_autograd_gives(cut, scheme, fickle):
    """Each slot has its own error, and none where no gradient reaches it. Integers travel unchanged."""
    chain = tupled_chain(tupled(fickle=fickle), BATCH)
    in_process = split_session(chain, (cut,), RECIPE, scheme, CPU)
    losses = in_process.train(0, STEPS, batches())
    assert len(losses) == STEPS
    assert in_process.evaluate(*batch_of(99)).samples == BATCH
    expected, order = tupled(fickle=fickle), steady_order(0, STEPS, scheme.staleness)
    plain_split(list(expected.parts), cut, RECIPE, scheme.backward, scheme.feedback, order, lambda _: scheme, batch_of)
    assert_same_bits(expected.state_dict(), chain.module.state_dict())


def test_integers_have_no_gradient_and_take_none():
    edge, cloud = both(tupled(), 3)
    features = edge.forward(0, (batch_of(0)[0],), input_gradient=False).outputs
    graph = cloud.forward(0, features, input_gradient=True)
    gradients = cloud.backward(graph, (torch.ones_like(graph.outputs[0]),))
    assert [gradient is None for gradient in gradients] == [False, True]
    assert edge.gradients_return
    assert edge.held.chain.gradient_slots(3) == (0,)
    assert edge.held.chain.gradient_slots(2) == (0, 1)


def test_a_stage_in_the_middle_sums_what_comes_back_to_a_tensor_that_it_hands_on():
    """Block 1 passes `skip` through: its error gradient is that of the blocks behind, with the same strides."""
    chain = tupled_chain(tupled(), BATCH)
    middle = lone_stage(chain, 1, 2, RECIPE, CPU)
    x, skip = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 2)
    graph = middle.forward(0, (x, skip), input_gradient=True)
    at_skip = torch.randn(2, BATCH).t()
    at_x, passed = middle.backward(graph, (torch.ones(BATCH, WIDTH), at_skip, None))
    assert at_x is not None
    assert passed is not None
    assert torch.equal(passed, at_skip)


def test_a_stage_of_no_blocks_hands_every_tensor_on():
    chain = tupled_chain(tupled(), BATCH)
    stage = lone_stage(chain, 2, 2, RECIPE, CPU)
    features = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 2), torch.ones(BATCH, WIDTH, dtype=torch.int64)
    gradients = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 2), None
    graph = stage.forward(0, features, input_gradient=True)
    for kept, given in zip(graph.outputs, features, strict=True):
        assert torch.equal(kept, given)
    for found, given in zip(stage.backward(graph, gradients), gradients, strict=True):
        assert (found is None and given is None) or torch.equal(found, given)


@pytest.mark.parametrize("cut", CUTS)
def test_either_side_of_such_a_cut_can_be_measured(cut):
    edge, cloud = both(tupled(), cut)
    features = edge.held.chain.features
    assert len(measure_stage(edge, features[0], input_gradient=False, repeats=2, policy=Replay)) == 2
    assert len(measure_stage(cloud, features[cut], input_gradient=True, repeats=2)) == 2
