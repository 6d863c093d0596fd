"""Each worker may compute in a precision of its own: the results are those of one process that casts where workers meet."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.errors import ConfigError
from shared.execution.crossing_types import CrossingTypes
from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state
from shared.placement import AGENT, Cargo, Permissions, Placement, Rows, Source, Tile, check
from shared.training.precision import computing, with_types
from shared.training.recipe import Recipe
from tests.support.crossed import crossed
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.placed import (
    CLASSES,
    INPUTS,
    MODEL_FACTS,
    WIDTH,
    LooseSession,
    batch_of,
    built,
    in_process,
    recipe,
    state_of,
)
from tests.support.plain import assert_same_bits, plain_optimizer, plain_scaler, plain_update
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE, STEPS = Rows(0, 8), 6
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def placed(*tiles: tuple[str, int, int], staleness: int = 0) -> Placement:
    return Placement(
        version=0,
        blocks=4,
        batch_size=8,
        workers=tuple(dict.fromkeys((AGENT, *(worker for worker, _, _ in tiles)))),
        tiles=tuple(Tile(worker, first, stop, WHOLE) for worker, first, stop in tiles),
        sources=(Source(AGENT, WHOLE),),
        staleness=staleness,
    )


KINDS = {
    "two workers": placed((AGENT, 0, 2), ("near", 2, 4)),
    "labels stay": placed((AGENT, 0, 1), ("near", 1, 3), (AGENT, 3, 4)),
    "chain of three": placed((AGENT, 0, 1), ("near", 1, 2), ("far", 2, 4)),
}
PRECISIONS = [
    {"near": "bf16"},
    {AGENT: "bf16", "near": "fp32", "far": "bf16"},
    {AGENT: "bf16", "near": "fp16"},
    {AGENT: "fp16", "near": "bf16", "far": "fp32"},
]


def with_little_to_do() -> nn.Sequential:
    """Four blocks, of which one only passes on what is not negative: in what type, follows from what came."""
    with random_state("weights"):
        layers = nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    return nn.Sequential(*(nn.Sequential(layer) for layer in layers))


class Twice(nn.Module):
    """Two layers of one input, to float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, WIDTH), nn.Linear(width, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] to [B, WIDTH]."""
        return (self.one(value) * self.other(value)).float()


def branching() -> nn.Sequential:
    """Blocks that use their input twice, as residual ones do, and hand on float32 in any precision."""
    with random_state("weights"):
        return nn.Sequential(Twice(INPUTS), Twice(WIDTH), Twice(WIDTH), nn.Linear(WIDTH, CLASSES))


def told(precision, **more) -> Recipe:
    return recipe("adamw", 0.5, precision, **more)


def typed(module: nn.Module, how: Recipe) -> Chain:
    with computing(how.base_precision):
        chain = build_chain(module, torch.zeros(8, INPUTS))
    return with_types(chain, how.other_precisions, torch.zeros(8, INPUTS))


def batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    return [batch_of(step, 8) for step in range(steps)]


def autocast(precision: str) -> torch.autocast:
    short = torch.bfloat16 if precision == "fp32" else TYPES[precision]
    return torch.autocast("cpu", short, enabled=precision != "fp32")


def types_in(module: nn.Sequential, precision: str) -> list[torch.dtype]:
    """The types between blocks where all of them compute in one precision."""
    value, found = torch.zeros(8, INPUTS), [torch.float32]
    with autocast(precision), torch.no_grad():
        for block in copy.deepcopy(module):
            value = block(value)
            found.append(value.dtype)
    return found


def one_process(
    module: nn.Sequential, how: Recipe, placement: Placement, given_batches: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Train in place, as a user writes it who has each stage compute in another precision."""
    optimizer, scaler = plain_optimizer(module, how.optimizer), plain_scaler(how)
    stages = sorted(placement.tiles, key=lambda tile: tile.first)
    known = {precision: types_in(module, precision) for precision in TYPES}
    for step, (inputs, labels) in enumerate(given_batches):
        value, before = inputs, None
        for tile in stages:
            precision = how.precision_of(tile.worker)
            if before is not None:
                value = value.to(known[before][tile.first])
                if value.dtype not in (torch.float32, known[precision][tile.first]):
                    value = value.float()
            with autocast(precision):
                for index in tile.blocks:
                    with random_state(how.seed, step, index):
                        value = module[index](value)
            before = precision
        with autocast(how.precision_of(stages[-1].worker)):
            loss = nn.functional.cross_entropy(value, labels)
        scaler.scale(loss).backward()
        plain_update([block.parameters() for block in module], optimizer, how, step, scaler)
    return dict(module.state_dict())


@pytest.mark.parametrize(
    ("kind", "precision", "make"),
    crossed(KINDS, [*PRECISIONS, "bf16", "fp16"], [partial(built, "dropping"), with_little_to_do, branching]),
)
def test_it_is_one_process_that_casts_where_workers_meet(kind, precision, make):
    placement, how, module = KINDS[kind], told(precision), make()
    size = 1e6 if how.is_scaled else 1.0  # then it overflows, and that update is skipped
    large = [(inputs * (size if step == 3 else 1), labels) for step, (inputs, labels) in enumerate(batches())]
    chains = {worker: typed(copy.deepcopy(module), how) for worker in placement.workers}
    in_process(chains, placement, how).train(0, STEPS, iter(large))
    assert_same_bits(one_process(module, how, placement, large), state_of(chains, placement))


def test_it_differs_from_one_precision_for_all():
    found = []
    for precision in ("fp32", "bf16", PRECISIONS[0]):
        module, how = built("dropping"), told(precision)
        found.append(one_process(module, how, KINDS["two workers"], batches()))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        with pytest.raises(AssertionError, match="differ: "):
            assert_same_bits(found[one], found[other])


@settings(max_examples=examples(10), deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(PRECISIONS),
    st.integers(0, 2),
    st.sampled_from(["replay", "stash"]),
    st.integers(0, 1 << 20),
)
def test_a_late_run_replays_in_the_order_that_it_had(kind, precision, staleness, backward, seed):
    placement, how, module = replace(KINDS[kind], staleness=staleness), told(precision), built("dropping")
    make_chain = partial(typed, how=how)
    loose = LooseSession(module, placement, how, backward, random.Random(seed), make_chain)
    loose.train(batches())
    chains = {worker: make_chain(copy.deepcopy(module)) for worker in placement.workers}
    in_process(chains, placement, how, backward).replay(loose.turns, iter(batches()))
    assert_same_bits(state_of(loose.chains, placement), state_of(chains, placement))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", PRECISIONS[:3], ids=str)
def test_links_carry_what_is_made_in_the_precision_of_its_maker(kind, precision):
    placement, how, module = KINDS[kind], told(precision, checkpoint_activations=True), built("dropping")

    async def main() -> LinkedSession:
        session = LinkedSession(module, placement, how, make_chain=partial(typed, how=how))
        await session.train(batches())
        return session

    session = run_virtually(main)
    types = CrossingTypes(session.chains[AGENT], how, placement)
    for one in session.plan.crossings:
        if one.cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            maker = one.sender if one.cargo is Cargo.FEATURE else one.receiver
            assert types.specs(one.index)[0].dtype is TYPES[how.precision_of(maker)]
    assert_same_bits(one_process(module, how, placement, batches()), state_of(session.chains, placement))


def test_parts_of_a_block_are_computed_in_one_precision():
    halves = Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("far", 2, 4, WHOLE)
    workers = (AGENT, "near", "far")
    shared = replace(KINDS["two workers"], tiles=halves, workers=workers, owners={0: AGENT, 1: AGENT})
    everybody = Permissions(inputs_to=frozenset(workers), gradients_to=frozenset(workers))
    for named in ({"far": "bf16"}, {AGENT: "bf16", "near": "bf16"}, {AGENT: "fp32", "far": "fp16"}):
        check(shared, replace(MODEL_FACTS["dropping"], precisions=told(named).precisions), everybody)
    with pytest.raises(
        ConfigError, match=r"block 0 .* is shared by 'edge' and 'near', which compute in different precisions"
    ):
        check(shared, replace(MODEL_FACTS["dropping"], precisions=told({"near": "bf16"}).precisions), everybody)
