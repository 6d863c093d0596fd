"""Blocks that hand on several tensors, over links that are lost: the parts that cross may have different samples."""

import functools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.execution.model_facts import facts_of
from shared.model.chain import build_chain
from shared.placement import Cargo, Placement, Rows, Source, StepPlan, Tile
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.models import several
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits
from tests.support.trained import BATCH, Task, Trained
from tests.support.virtual import run_virtually
from tests.unit.shared.execution.test_several_tensors import sentences

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3


@functools.cache
def biased() -> Trained:
    """Train the model of which every layer reads what the first has made."""
    return Trained(Task(several.Biased, sentences))


def linked(placement: Placement, seed: int) -> dict[str, Tensor]:
    """Train over links that are lost now and then; return the weights."""
    trained, dice = biased(), random.Random(seed)
    losses = [dice.randrange(40) for _ in range(dice.randrange(6))]

    async def main() -> LinkedSession:
        session = LinkedSession(
            trained.module,
            placement,
            trained.recipe(),
            losses=losses,
            make_chain=lambda module: build_chain(module, trained.batches[0][0]),
        )
        await session.train(trained.batches[:STEPS])
        return session

    return trained.joined(run_virtually(main).chains, placement)


def test_parts_of_one_feature_with_different_samples_cross_one_link():
    parts, whole = (Rows(0, 2), Rows(2, BATCH)), Rows(0, BATCH)
    blocks = len(biased().chain.blocks)
    tiles = (
        Tile("edge", 0, 1, whole),
        Tile("edge", 1, 2, parts[0]),
        Tile("near", 1, 2, parts[1]),
        Tile("edge", 2, 3, whole),
        Tile("near", 3, blocks, whole),
    )
    placement = Placement(0, blocks, BATCH, ("edge", "near"), tiles, (Source("edge", whole),), owners={1: "edge"})
    plan = StepPlan(placement, facts_of(biased().chain))
    there = [(one.index, one.rows) for one in plan.between("edge", "near") if one.cargo is Cargo.FEATURE]
    assert len({index for index, _ in there}) < len(there) == len(set(there))
    for seed in range(2):
        assert_same_bits(biased().placed(placement, STEPS), linked(placement, seed))


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(placement=valid_placements(facts_of(biased().chain), st.just(BATCH)), seed=st.integers(0, 1 << 32))
def test_any_division_over_links_that_are_lost_equals_that_without_links(placement, seed):
    exact = replace(placement, staleness=0)
    assert_same_bits(biased().placed(exact, STEPS), linked(exact, seed))
