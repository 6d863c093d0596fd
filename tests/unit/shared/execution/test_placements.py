"""Any valid placement computes, bit for bit, the results of one process that runs the same tiles."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.placement import held_blocks, moves
from shared.registry import OPTIMIZERS
from tests.support.examples import examples
from tests.support.placed import MODEL_FACTS, MODELS, batch_of, built, chain_of, in_process, recipe, state_of
from tests.support.placements import placements, valid_placements
from tests.support.plain import assert_same_bits, plain_counts
from tests.support.plain_tiles import PlainTiles

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3


@st.composite
def valid(draw, name, batch_sizes):
    """Draw a valid placement of a model on up to three workers, without staleness."""
    return replace(draw(valid_placements(MODEL_FACTS[name], batch_sizes)), staleness=0)


@st.composite
def cases(draw):
    """Draw a model and a placement of it."""
    name = draw(st.sampled_from(sorted(MODELS)))
    return name, draw(valid(name, st.integers(3, 8)))


@st.composite
def recipes(draw):
    """Draw a recipe; the last of its updates may lack a batch."""
    clip_norm = draw(st.sampled_from([None, 0.5, 0.5]))
    return recipe(
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        clip_norm,
        clip="block" if clip_norm is None else draw(st.sampled_from(["block", "model"])),
        checkpoint_activations=draw(st.booleans()),
        accumulate_batches=draw(st.sampled_from([1, 1, 2, 3])),
        mean=draw(st.sampled_from(["batch", "token"])),
    )


@settings(max_examples=examples(50), deadline=None)
@given(cases(), recipes(), st.data())
def test_any_placement_computes_what_one_process_with_its_tiles_does(case, told, data):
    name, placement = case
    samples = [placement.batch_size] * STEPS
    if name == "dropping":  # A part of one sample has no statistics.
        samples[-1] = data.draw(st.integers(1, placement.batch_size))
    module = built(name)
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    plain = PlainTiles(list(module), placement, told)
    simulated = in_process(chains, placement, told)
    batches = [batch_of(step, count) for step, count in enumerate(samples)]
    for _, labels in batches if told.mean == "token" else ():
        labels[1 : data.draw(st.integers(1, len(labels)))] = -100
    losses = simulated.train(0, STEPS, iter(batches))
    numbered = ((step, *batch) for step, batch in enumerate(batches))
    expected = [plain.step(*batch, counted) for batch, counted in plain_counts(told, numbered)]
    assert [loss.samples for loss in losses] == samples
    assert [loss.loss for loss in losses] == pytest.approx(expected, rel=1e-6)
    assert_same_bits(dict(module.state_dict()), state_of(chains, placement))
    for worker, index in ((tile.worker, index) for tile in placement.tiles for index in tile.blocks):
        of_owner, held = (chains[who].blocks[index] for who in (placement.owner(index), worker))
        assert_same_bits(
            of_owner.named_parameters() | of_owner.named_buffers(), held.named_parameters() | held.named_buffers()
        )


@st.composite
def changes(draw):
    """Draw a model, and two to four placements of it."""
    name = draw(st.sampled_from(sorted(MODELS)))
    one = valid(name, st.just(6))
    return name, draw(st.lists(one, min_size=2, max_size=4))


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    changes(), st.sampled_from(["sgd", "adam", "adagrad"]), st.sampled_from([None, 0.5]), st.sampled_from([1, STEPS])
)
def test_placements_may_follow_each_other_and_change_no_bit(change, optimizer, clip_norm, batches_of_update):
    name, ways = change
    told, module = recipe(optimizer, clip_norm, accumulate_batches=batches_of_update), built(name)
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in ways[0].workers}
    plain, simulated = PlainTiles(list(module), ways[0], told), in_process(chains, ways[0], told)
    for number, placement in enumerate(ways):
        if number:
            plain.change(placement)
            simulated.change(placement)
        steps = range(STEPS * number, STEPS * (number + 1))
        batches = [batch_of(step, placement.batch_size) for step in steps]
        simulated.train(steps.start, steps.stop, iter(batches))
        for step, batch in zip(steps, batches, strict=True):
            plain.step(step, *batch)
        assert_same_bits(dict(module.state_dict()), state_of(chains, placement))


@given(st.data())
def test_only_blocks_that_a_worker_lacks_move(data):
    model = MODEL_FACTS["dropping"]
    before, after = data.draw(placements(model)), data.draw(placements(model))
    has = {(worker, block) for worker in before.workers for block in held_blocks(before, worker)}
    owns = {(before.owner(block), block) for block in range(before.blocks)}
    for block, sender, receiver, whole in moves(before, after):
        assert (sender, block) in owns
        assert whole == (after.owner(block) == receiver)
        assert (receiver, block) not in (owns if whole else has), "it has that already"
        has.add((receiver, block))
        if whole:
            owns.add((receiver, block))
    assert {(worker, block) for worker in after.workers for block in held_blocks(after, worker)} <= has
    assert {(after.owner(block), block) for block in range(after.blocks)} <= owns


@settings(max_examples=examples(25), deadline=None)
@given(cases(), st.sampled_from(["sgd", "adamw"]), st.sampled_from([None, 0.5]))
def test_bfloat16_is_that_of_one_process_under_autocast(case, optimizer, clip_norm):
    name, placement = case
    told, module = recipe(optimizer, clip_norm, "bf16"), built(name)
    chains = {worker: chain_of(copy.deepcopy(module), "bf16") for worker in placement.workers}
    assert {spec.dtype for feature in chains["edge"].features[1:] for spec in feature} >= {torch.bfloat16}
    plain, simulated = PlainTiles(list(module), placement, told), in_process(chains, placement, told)
    batches = [batch_of(step, placement.batch_size) for step in range(STEPS)]
    losses = simulated.train(0, STEPS, iter(batches))
    expected = [plain.step(step, *batch) for step, batch in enumerate(batches)]
    assert [loss.loss for loss in losses] == pytest.approx(expected, rel=1e-6)
    assert_same_bits(dict(module.state_dict()), state_of(chains, placement))
    assert all(value.dtype is torch.float32 for value in module.state_dict().values() if value.is_floating_point())
