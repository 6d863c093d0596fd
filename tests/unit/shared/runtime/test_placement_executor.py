"""Workers over production links in virtual time: any placement, any delays, links lost at any packet."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.codec import error_feedback
from shared.placement import (
    Cargo,
    Route,
    crossings,
    parse_placement,
    unnamed_blocks,
)
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.placed import MODEL_FACTS, batch_of, built, chain_of, in_process, recipe, state_of
from tests.support.placements import chains, valid_placements
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 5


ANY = st.one_of(chains(), valid_placements(MODEL_FACTS["dropping"]))
"""Chains, labels that stay, shared blocks, samples at several workers, owners without a tile."""


UPDATES = st.sampled_from([{}, {"clip_norm": 0.5, "clip": "model"}, {"accumulate_batches": 2}, {"samples_ahead": 2}])
"""Updates of every batch, with one norm for all blocks, and of several batches."""


def delays(dice: random.Random):
    longest = dice.choice([0.0, 0.001, 0.05])
    return lambda: dice.uniform(0, longest)


def trained(make: Callable[[], LinkedSession], batches: Sequence[tuple[Tensor, Tensor]]) -> LinkedSession:
    """Build a session and train it in virtual time."""

    async def main() -> LinkedSession:
        session = make()
        await session.train(batches)
        return session

    return run_virtually(main)


@settings(max_examples=examples(30), deadline=None)
@given(ANY, st.lists(st.integers(0, 60), max_size=8), st.integers(0, 1 << 30), UPDATES)
def test_in_float16_all_skip_what_one_process_skips_whatever_is_lost(placement, losses, seed, updates):
    placement, told, module = (
        replace(placement, staleness=0),
        recipe("adam", precision="fp16", **updates),
        built("dropping"),
    )
    batches = [batch_of(step, placement.batch_size) for step in range(STEPS)]
    batches = [(inputs * (1e6 if step == 2 else 1), labels) for step, (inputs, labels) in enumerate(batches)]
    seconds = delays(random.Random(seed))
    session = trained(
        lambda: LinkedSession(
            module, placement, told, seconds=seconds, losses=losses, make_chain=partial(chain_of, precision="fp16")
        ),
        batches,
    )
    plain = PlainTiles(list(module), placement, told)
    for step, batch in enumerate(batches):
        plain.step(step, *batch)
    assert plain.skipped
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, placement))


@settings(max_examples=examples(30), deadline=None)
@given(
    ANY,
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(0, 1 << 30),
    st.integers(1, 8),
    UPDATES,
)
def test_a_session_without_staleness_is_one_process_with_its_tiles(placement, losses, seed, last_samples, updates):
    placement, told, module = replace(placement, staleness=0), recipe("adam", **updates), built("dropping")
    samples = [placement.batch_size] * (STEPS - 1) + [min(last_samples, placement.batch_size)]
    batches = [batch_of(step, count) for step, count in enumerate(samples)]
    seconds = delays(random.Random(seed))
    session = trained(lambda: LinkedSession(module, placement, told, seconds=seconds, losses=losses), batches)
    plain = PlainTiles(list(module), placement, told)
    expected = [plain.step(step, *batch) for step, batch in enumerate(batches)]
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, placement))
    for step, dones in session.done.items():
        assert sorted(done.worker for done in dones) == sorted(session.workers)
        loss = sum(done.loss * done.samples for done in dones) / samples[step]
        assert loss == pytest.approx(expected[step], rel=1e-6)


@settings(max_examples=examples(30), deadline=None)
@given(
    ANY,
    st.integers(1, 3),
    st.sampled_from(["replay", "stash"]),
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(0, 1 << 30),
    st.sampled_from([0, 2]),
)
def test_late_gradients_are_never_later_than_k_whatever_is_lost(placement, staleness, backward, losses, seed, ahead):
    placement = replace(placement, staleness=staleness)
    seconds, batches = delays(random.Random(seed)), [batch_of(step, placement.batch_size) for step in range(STEPS)]
    session = trained(
        lambda: LinkedSession(
            built("dropping"), placement, recipe("sgd", samples_ahead=ahead), backward, seconds, losses
        ),
        batches,
    )
    for blocks in session.blocks.values():
        assert all(0 <= late <= staleness for late in blocks.staleness)
    assert all(len(dones) == len(session.workers) for dones in session.done.values())


@settings(max_examples=examples(25), deadline=None)
@given(
    chains(),
    st.sampled_from(["uniform4", "bf16", "fp32"]),
    st.sampled_from(["uniform8", "raw"]),
    st.lists(st.integers(0, 60), max_size=4),
    st.integers(0, 1 << 30),
    st.sampled_from([8, error_feedback.MOST_EXACT_ELEMENTS]),
)
def test_compression_is_compensated_once_whatever_is_lost(placement, up, down, losses, seed, most_exact):
    """The codec of each link and direction, and the sender's feedback, work as in one process."""
    pairs = [(one.sender, one.receiver) for one in crossings(placement, unnamed_blocks(placement.blocks))]
    codecs = {Route(near, far, Cargo.FEATURE): up for near, far in pairs}
    codecs |= {Route(far, near, Cargo.ERROR_GRADIENT): down for near, far in pairs}
    placement = replace(placement, codecs=codecs, staleness=0)
    told, module = recipe("sgd"), built("dropping")
    batches = [batch_of(step, placement.batch_size) for step in range(STEPS)]
    seconds = delays(random.Random(seed))
    with patch.multiple(error_feedback, MOST_EXACT_ELEMENTS=most_exact, PART_ELEMENTS=most_exact):
        session = trained(lambda: LinkedSession(module, placement, told, seconds=seconds, losses=losses), batches)
        simulated = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
        in_process(simulated, placement, told).train(0, STEPS, iter(batches))
    assert_same_bits(state_of(simulated, placement), state_of(session.chains, placement))


@pytest.mark.parametrize("losses", [[], [12], [12, 12]])
def test_reports_tell_how_often_links_were_lost(losses):
    blocks = len(MODEL_FACTS["dropping"].blocks)
    ranges = {"edge": [0, 1], "near": [1, 2], "far": [2, blocks]}
    tiles = [{"worker": worker, "blocks": run} for worker, run in ranges.items()]
    placement = parse_placement(
        {"schema": "isthmus.placement/v1", "workers": [*ranges], "tiles": tiles}, "here", blocks, 8
    )
    batches = [batch_of(step, placement.batch_size) for step in range(3 * STEPS)]
    session = trained(lambda: LinkedSession(built("dropping"), placement, recipe("sgd"), losses=losses), batches)
    lost = session.streams - len(session.plan.links)
    assert lost == len(losses)
    assert sum(done.links_lost for done in session.done[len(batches) - 1]) == 2 * lost, "each at both ends"
