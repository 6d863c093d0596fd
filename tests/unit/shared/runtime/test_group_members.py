"""Members of a group over production links in virtual time: whatever is late or lost, they equal micro-batches by rank."""

import asyncio
import copy
import random
from functools import partial

import pytest

from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_weights import GroupWeights
from shared import slicing
from shared.execution.blocks import Method
from shared.training import slices
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import LossHead
from tests.support.crossed import seeds
from tests.support.group_members import (
    SAMPLES,
    PlainCodecs,
    assert_equal,
    batches,
    codec_down,
    copies,
    micro_batches,
    owned_by,
    with_a_cut,
)
from tests.support.placed import CPU, built, chain_of, recipe
from tests.support.placed_session import PlacedSession
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE, STEPS = 2, 3


def trained(placement, told, seed, steps=STEPS):
    """Train a group whose members and links take any time and are lost now and then; return its weights and theirs."""
    module, dice = built("dropping"), random.Random(seed)
    down = codec_down(placement)

    async def main():
        chain = chain_of(copy.deepcopy(module))
        groups = {
            trainer: Group(
                GroupWeights(HeldBlocks(chain, told, CPU, owned_by(trainer, placement)), down),
                range(SIZE),
                placement.staleness,
            )
            for trainer in set(placement.owners.values())
        }
        members: dict[int, PlacedSession] = {}

        def give(rank, one):
            trainer = one.crossing.sender
            for merged in groups[trainer].merge(rank, one.step, one.crossing.of_block, one.load, one.samples):
                members[merged.rank].executors[trainer].take_merged(
                    merged.step, merged.of, merged.weights, merged.rate_drops
                )

        for rank in range(SIZE):
            longest = dice.choice([0.0, 0.001, 0.05])
            losses = [dice.randrange(60) for _ in range(dice.randrange(6))]
            members[rank] = PlacedSession(
                copy.deepcopy(module),
                placement,
                told,
                Method(LossHead(told.loss, None), first_sample=rank * SAMPLES),
                lambda longest=longest: dice.uniform(0, longest),
                losses,
                give=partial(give, rank),
            )
        try:
            await asyncio.gather(*(each.train(list(batches(rank, steps))) for rank, each in members.items()))
        finally:
            for each in members.values():
                await each.stop()
        ends = {rank: each.chains["edge"].module.state_dict() for rank, each in members.items()}
        return chain.module.state_dict(), ends

    return module, *run_virtually(main)


@pytest.mark.first_case
@pytest.mark.parametrize("seed", seeds(15))
@pytest.mark.parametrize(
    ("placement", "up", "down"),
    [
        (copies, "raw", "raw"),
        (with_a_cut, "raw", "raw"),
        (partial(copies, trainers=("near", "far")), "raw", "raw"),
        (partial(copies, trainers=("near", "far"), up="uniform4"), "uniform4", "raw"),
        (partial(copies, trainers=("near", "far"), up="uniform8", down="uniform3"), "uniform8", "uniform3"),
        (partial(copies, down="fp16"), "raw", "fp16"),
    ],
)
def test_members_that_wait_for_each_other_equal_micro_batches(placement, up, down, seed):
    placed = placement(4)
    clips = ("block", "model") if len(placed.workers) == 2 else ("block",)
    told = recipe("adam", 0.1, clip=clips[seed % len(clips)])
    module, group, ends = trained(placed, told, seed)
    expected = micro_batches(module, told, SIZE, steps=STEPS, codecs=PlainCodecs(up, down=down))
    if down == "raw":
        assert_equal(group, expected)
    if placement is not with_a_cut:
        for found in ends.values():
            assert_equal(found, expected)


@pytest.mark.first_case
@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize(("up", "down"), [("raw", "raw"), ("uniform8", "uniform3")])
def test_slices_that_come_in_any_order_over_links_that_are_lost_equal_micro_batches(up, down, seed, monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 64)
    monkeypatch.setattr(slices, "UNIT", 8)
    told = recipe("adam")
    module, group, ends = trained(copies(4, up=up, down=down), told, seed)
    expected = micro_batches(module, told, SIZE, steps=STEPS, codecs=PlainCodecs(up, down=down))
    if down == "raw":
        assert_equal(group, expected)
    for found in ends.values():
        assert_equal(found, expected)


@pytest.mark.parametrize("seed", seeds(10))
def test_late_gradients_bring_nobody_to_a_standstill_and_all_end_with_the_same_weights(seed):
    placed = copies(4, 1 + seed % 2, down=("raw", "uniform4")[seed % 2])
    _, group, ends = trained(placed, recipe("sgd"), seed, steps=6)
    for found in ends.values():
        assert_equal(found, group if seed % 2 == 0 else ends[0])
