"""The plan of a placement: it is computed once, in time and memory proportional to the placement's parts."""

import itertools
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.execution.planned_segments import planned, used_up
from shared.placement import (
    BlockFacts,
    Cargo,
    ModelFacts,
    Permissions,
    Placement,
    PlacementPlan,
    Receive,
    Rows,
    Send,
    Source,
    StepPlan,
    Tile,
    check,
    crossings,
    gradient_crossings,
    segments,
    weight_crossings,
)
from shared.placement.validity import MAX_SHARED_PARTS
from tests.support.placements import WORKERS, models, placements

MANY = tuple(["edge"] + [f"trainer-{number}" for number in range(1, 16)])


def model_of(blocks, frozen=0):
    return ModelFacts(tuple(BlockFacts(f"b{index}", trainable=index >= frozen) for index in range(blocks)))


def placement_of(blocks, tiles, sources, workers=MANY, owners=None):
    return Placement(0, blocks, 64, workers, tuple(tiles), tuple(sources), owners or {})


def divided(workers, shift=0):
    """Divide a batch of 64 among the workers, with the inner bounds moved by `shift`."""
    each = 64 // len(workers)
    bounds = [0, *(each * number + shift for number in range(1, len(workers))), 64]
    return [(worker, Rows(bounds[at], bounds[at + 1])) for at, worker in enumerate(workers)]


EDGE = [Source("edge", Rows(0, 64))]


def all_shared(blocks):
    """Return a placement of sixteen workers that share all blocks, and take turns in owning them."""
    tiles = [Tile(worker, 0, blocks, rows) for worker, rows in divided(MANY)]
    return placement_of(blocks, tiles, EDGE, owners={block: MANY[block % 16] for block in range(blocks)})


def alternating(blocks):
    """Return a placement of two workers that take turns, block by block."""
    tiles = [Tile(MANY[block % 2], block, block + 1, Rows(0, 64)) for block in range(blocks)]
    return placement_of(blocks, tiles, EDGE, MANY[:2])


def woven(blocks):
    """Return a placement of sixteen workers that all have samples and share each block, on other samples than the block
    before."""
    tiles = [
        Tile(worker, block, block + 1, rows)
        for block in range(blocks)
        for worker, rows in divided(MANY[block % 16 :] + MANY[: block % 16], block % 2)
    ]
    sources = [Source(worker, rows) for worker, rows in divided(MANY)]
    return placement_of(blocks, tiles, sources, owners={block: MANY[block % 16] for block in range(blocks)})


def whole(blocks):
    """Return a placement of two workers on one cut."""
    return placement_of(
        blocks, [Tile("edge", 0, 1, Rows(0, 64)), Tile(MANY[1], 1, blocks, Rows(0, 64))], EDGE, MANY[:2]
    )


def calls_of(function):
    """Count the functions that the interpreter begins during a call, in Python and in C."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def worked_out(placement, model):
    """Compute everything that both sides derive from a placement before the first step."""
    check(placement, model, Permissions(inputs_to=frozenset(MANY)))
    for plan in PlacementPlan.of(placement, model)[1:]:
        for worker in placement.workers:
            _, rest = segments(plan.program(worker))
            planned(rest, model, itertools.count())
            used_up(rest, model)
            for peer in plan.peers(worker):
                plan.between(worker, peer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [all_shared, alternating, woven, whole])
@pytest.mark.parametrize("frozen", [0, 1], ids=["all learn", "half are frozen"])
def test_twice_the_blocks_take_twice_the_work(kind, frozen):
    def calls(blocks):
        placement, model = kind(blocks), model_of(blocks, frozen * blocks // 2)
        return calls_of(lambda: worked_out(placement, model))

    assert calls(64) <= 2.3 * calls(32)


@pytest.mark.parametrize("kind", [all_shared, alternating, woven, whole])
def test_the_size_of_a_plan_grows_with_the_parts_of_its_placement(kind):
    placement = kind(64)
    plan = StepPlan(placement, model_of(64))
    operations = sum(len(plan.program(worker)) for worker in placement.workers)
    assert len(plan.crossings) <= 6 * placement.parts
    assert operations <= 2 * len(plan.crossings) + 4 * placement.parts


def test_the_most_that_may_be_shared_is_taken_and_one_part_more_is_refused():
    everybody = Permissions(inputs_to=frozenset(MANY))
    blocks = MAX_SHARED_PARTS // 15
    check(all_shared(blocks), model_of(blocks), everybody)
    with pytest.raises(ConfigError, match=f"of a model of {blocks + 2} blocks at most {blocks + 2 + MAX_SHARED_PARTS}"):
        check(all_shared(blocks + 2), model_of(blocks + 2), everybody)


def test_tiles_that_lie_over_each_other_are_refused_before_they_are_looked_at_block_by_block():
    blocks = 1000
    over = replace(whole(blocks), tiles=tuple(Tile("edge", 0, blocks, Rows(0, 64)) for _ in range(1000)))
    model = model_of(blocks)

    def refused():
        with pytest.raises(ConfigError, match="let fewer workers share blocks"):
            check(over, model, Permissions())

    assert calls_of(refused) < 20 * len(over.tiles)


@given(data=st.data(), training=st.booleans())
def test_a_plan_says_the_same_as_its_parts(data, training):
    model = data.draw(models())
    placement = data.draw(placements(model))
    plan = StepPlan(placement, model, training=training)
    back = (*gradient_crossings(placement, model), *weight_crossings(placement, model)) if training else ()
    assert plan.crossings == (*crossings(placement, model), *back)
    sent, received = Counter(), Counter()
    for worker in WORKERS:
        for one in plan.program(worker):
            if isinstance(one, Send):
                assert one.crossing in plan.between(worker, one.crossing.receiver)
                sent[one.crossing] += 1
            elif isinstance(one, Receive):
                assert one.crossing in plan.between(one.crossing.sender, worker)
                received[one.crossing] += 1
    assert sent == received == Counter(plan.crossings), "each goes once, and is waited for once"
    assert training or {one.cargo for one in plan.crossings} <= {Cargo.FEATURE, Cargo.LABEL}


@given(data=st.data())
def test_a_tensor_is_kept_until_the_last_segment_that_needs_it(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    plan = StepPlan(placement, model)
    for worker in WORKERS:
        _, rest = segments(plan.program(worker))
        gone = {Cargo.FEATURE: set(), Cargo.ERROR_GRADIENT: set()}
        for segment, (values_used, gradients_used) in zip(rest, used_up(rest, model), strict=True):
            for one in segment:
                if isinstance(one, Send) and one.crossing.cargo in gone:
                    values = [model.features[one.crossing.index][slot] for slot in one.crossing.slots]
                    assert gone[one.crossing.cargo].isdisjoint(values)
            gone[Cargo.FEATURE].update(values_used)
            gone[Cargo.ERROR_GRADIENT].update(gradients_used)
