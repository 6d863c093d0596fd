"""A weight of two blocks is updated once, by the sum of both gradients: bit for bit as in one process."""

import copy

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ConfigError
from shared.execution.model_facts import facts_of
from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state
from shared.placement import AGENT, Permissions, Placement, Rows, Source, Tile, check
from shared.training.held_blocks import HeldBlocks
from shared.training.policies import policy_of_stage
from shared.training.recipe import Recipe
from shared.training.stage import Stage, lone_stage
from tests.support.models.tied import TiedText
from tests.support.placed import in_process, recipe, state_of
from tests.support.plain import assert_same_bits, plain_loop, plain_optimizer, plain_update

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH_SIZE, LENGTH, VOCABULARY, STEPS = 6, 5, 20, 7
NAMES = ["table", "layers.0", "layers.1", "layers.2", "head"]
PERMITTED = Permissions(inputs_to=frozenset((AGENT, "near", "far")))
RANGES = {
    "alone": {AGENT: [(0, 5)]},
    "labels that stay": {AGENT: [(0, 1), (4, 5)], "near": [(1, 4)]},
    "two trainers between": {AGENT: [(0, 2), (4, 5)], "near": [(2, 3)], "far": [(3, 4)]},
    "there and back": {AGENT: [(0, 1), (2, 3), (4, 5)], "near": [(1, 2), (3, 4)]},
}


def built(dropout: float = 0.2) -> TiedText:
    with random_state("tied"):
        return TiedText(dropout=dropout)


def chain_of(module: nn.Module) -> Chain:
    return build_chain(module, torch.zeros(BATCH_SIZE, LENGTH, dtype=torch.int64))


def placed(ranges: dict[str, list[tuple[int, int]]], staleness: int = 0) -> Placement:
    whole = Rows(0, BATCH_SIZE)
    tiles = tuple(Tile(worker, *each, whole) for worker, runs in ranges.items() for each in runs)
    return Placement(0, 5, BATCH_SIZE, tuple(ranges), tiles, (Source(AGENT, whole),), staleness=staleness)


def batches() -> list[tuple[Tensor, Tensor]]:
    with random_state("tokens"):
        return [
            (torch.randint(VOCABULARY, (samples, LENGTH)), torch.randint(VOCABULARY, (samples,)))
            for samples in [BATCH_SIZE, 4] * STEPS
        ]


def test_a_tied_model_is_divided_between_the_blocks_that_use_the_weight():
    chain = chain_of(built())
    assert [block.name for block in chain.blocks] == NAMES
    assert chain.together == ((0, 4),)
    keys = [key for block in chain.blocks for key in block.named_parameters()]
    assert sorted([*keys, "head.weight"]) == sorted(chain.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
@pytest.mark.parametrize("kind", RANGES)
def test_a_tied_model_trains_as_in_one_process(kind, optimizer):
    module, told, placement = built(), recipe(optimizer, clip_norm=0.5), placed(RANGES[kind])
    plain = chain_of(copy.deepcopy(module))
    check(placement, facts_of(plain), PERMITTED)
    expected = plain_loop(plain, told, ((step, *batch) for step, batch in enumerate(batches())))
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    in_process(chains, placement, told).train(0, len(batches()), iter(batches()))
    found = state_of(chains, placement)
    assert_same_bits({name: value for name, value in expected.items() if name != "head.weight"}, found)
    assert chains[AGENT].module.head.weight is chains[AGENT].module.table.weight


def late_by_hand(module: TiedText, told: Recipe, staleness: int) -> dict[str, Tensor]:
    """Train with a device that looks up, and knows labels, and a trainer between, each update as late as K allows."""
    here, there = module.table, nn.ModuleList([*module.layers, module.norm])
    ours, theirs = plain_optimizer(here, told.optimizer), plain_optimizer(there, told.optimizer)
    waiting: list[tuple[int, Tensor, Tensor, Tensor]] = []

    def end(step: int, tokens: Tensor, at_looked_up: Tensor, of_head: Tensor) -> None:
        module.table(tokens).backward(at_looked_up)
        module.table.weight.grad = of_head + module.table.weight.grad
        plain_update([here.parameters()], ours, told, step)

    for step, (tokens, labels) in enumerate(batches()):
        if len(waiting) > staleness:
            end(*waiting.pop(0))
        looked_up = module.table(tokens).detach().requires_grad_()
        crossing = module.norm(nn.Sequential(*module.layers)(looked_up).mean(1))
        received = crossing.detach().requires_grad_()
        nn.functional.cross_entropy(module.head(received), labels).backward()
        of_head = module.table.weight.grad
        here.zero_grad(set_to_none=True)
        crossing.backward(received.grad)
        plain_update([there.parameters()], theirs, told, step)
        waiting.append((step, tokens, looked_up.grad, of_head))
    for each in waiting:
        end(*each)
    return {name: value for name, value in module.state_dict().items() if name != "head.weight"}


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("backward", ["replay", "stash"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_late_gradients_of_both_blocks_are_summed_step_by_step(optimizer, backward, staleness):
    module, told, placement = built(dropout=0.0), recipe(optimizer), placed(RANGES["labels that stay"], staleness)
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    in_process(chains, placement, told, backward).train(0, len(batches()), iter(batches()))
    assert_same_bits(late_by_hand(copy.deepcopy(module), told, staleness), state_of(chains, placement))


@pytest.mark.parametrize("backward", ["replay", "stash"])
def test_a_copy_of_the_weights_serves_both_blocks_of_one_stage(backward):
    """With all blocks in one stage behind a cut that K makes late, the gradient of the weight is that of both."""
    ends = []
    for tied in (True, False):
        module = built(dropout=0.0)
        if not tied:
            module.head.weight = nn.Parameter(module.table.weight.detach().clone())
        chain = chain_of(module)
        held = HeldBlocks(chain, recipe("sgd"), torch.device("cpu"), range(5))
        policy = policy_of_stage(backward, 1, ends_model=False)(Stage(held, 0, 5), input_gradient=False)
        policy.forward(0, (batches()[0][0],))
        policy.backward(0, (torch.ones(BATCH_SIZE, VOCABULARY),))
        ends.append(held.take_gradients(range(5)))
    both, parted = ends
    expected = parted[4]["head.weight"] + parted[0]["table.weight"]
    assert torch.equal(both[0]["table.weight"], expected)


def test_blocks_of_one_weight_move_together():
    module, told = built(), recipe("adamw")
    plain = plain_loop(
        chain_of(copy.deepcopy(module)), told, ((step, *batch) for step, batch in enumerate(batches()[:9]))
    )
    placements = [
        placed(RANGES["labels that stay"]),
        placed({AGENT: [(1, 2)], "near": [(0, 1), (2, 5)]}),
        placed({AGENT: [(0, 5)], "near": []}),
    ]
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in (AGENT, "near")}
    session = in_process(chains, placements[0], told)
    for place, placement in enumerate(placements):
        session.change(placement)
        session.train(3 * place, 3 * place + 3, iter(batches()[3 * place : 3 * place + 3]))
    found = state_of(chains, placements[-1])
    assert_same_bits({name: value for name, value in plain.items() if name != "head.weight"}, found)


def test_a_placement_that_parts_them_is_refused_with_one_that_would_do():
    facts = facts_of(chain_of(built()))
    for ranges in ({AGENT: [(0, 1)], "near": [(1, 5)]}, {AGENT: [(0, 1)], "near": [(1, 3)], "far": [(3, 5)]}):
        with pytest.raises(ConfigError) as refused:
            check(placed(ranges), facts, PERMITTED)
        assert str(refused.value) == (
            "placement: block 0 (table) and block 4 (head) use one weight, so one worker must have both, for all samples, as "
            'edge = ["0:1", "4:5"]'
        )
    halves = (Rows(0, 3), Rows(3, BATCH_SIZE))
    shared = Placement(
        *(0, 5, BATCH_SIZE, (AGENT, "near")),
        tiles=tuple(Tile(worker, 0, 5, rows) for worker, rows in zip((AGENT, "near"), halves, strict=True)),
        sources=(Source(AGENT, Rows(0, BATCH_SIZE)),),
        owners=dict.fromkeys(range(5), AGENT),
    )
    with pytest.raises(ConfigError, match="use one weight, so one worker must have both, for all samples"):
        check(shared, facts, PERMITTED)


def test_a_part_of_a_model_leaves_no_gradient_in_a_weight_that_another_part_has():
    chain = chain_of(built())
    stage = lone_stage(chain, 1, 5, recipe("sgd"), torch.device("cpu"))
    graph = stage.forward(0, (torch.randn(BATCH_SIZE, LENGTH, 8),), input_gradient=True)
    stage.backward(graph, (torch.ones(BATCH_SIZE, VOCABULARY),))
    stage.update(0)
    assert chain.module.table.weight.grad is None
