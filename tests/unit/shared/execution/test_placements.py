"""Any valid placement computes, bit for bit, what one process that runs the same tiles computes."""

import copy
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.placement import check
from shared.training.optimizers import OPTIMIZERS
from tests.support.placed import MODEL_FACTS, MODELS, batch_of, built, chain_of, recipe, simulation, state_of
from tests.support.placements import EVERYBODY, placements
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3


@st.composite
def cases(draw):
    """A model, and a valid placement of it on up to three workers."""
    name = draw(st.sampled_from(sorted(MODELS)))
    model = MODEL_FACTS[name]
    placement = replace(draw(placements(model)), staleness=0)
    try:
        check(placement, model, EVERYBODY)
    except ConfigError:  # a part is too small for its statistics
        assume(False)
    return name, placement


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([None, 0.5]), st.data())
def test_any_placement_computes_what_one_process_with_its_tiles_does(case, optimizer, clip_norm, data):
    name, placement = case
    samples = [placement.batch_size] * STEPS
    if name == "dropping":  # a part of one sample has no statistics
        samples[-1] = data.draw(st.integers(1, placement.batch_size))
    told = recipe(optimizer, clip_norm)
    module = built(name)
    chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    plain = PlainTiles(list(module), placement, told)
    simulated = simulation(chains, placement, told)
    batches = [batch_of(step, count) for step, count in enumerate(samples)]
    losses = simulated.train(0, STEPS, iter(batches))
    expected = [plain.step(step, *batch) for step, batch in enumerate(batches)]
    assert [loss.samples for loss in losses] == samples
    assert [loss.loss for loss in losses] == pytest.approx(expected, rel=1e-6)
    assert_same_bits(dict(module.state_dict()), state_of(chains, placement))
    for worker, index in ((tile.worker, index) for tile in placement.tiles for index in tile.blocks):
        of_owner, held = (chains[who].blocks[index] for who in (placement.owner(index), worker))
        assert_same_bits(
            of_owner.named_parameters() | of_owner.named_buffers(), held.named_parameters() | held.named_buffers()
        )
