"""Orders of computation: no gradient is staler than K, no worker waits for ever, and an order of events decides every bit."""

import copy
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.registry import POLICIES
from tests.support.examples import examples
from tests.support.placed import MODEL_FACTS, LooseSession, batch_of, built, chain_of, in_process, recipe, state_of
from tests.support.placements import chains, valid_placements
from tests.support.plain import assert_same_bits

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 6


ANY = st.one_of(chains(), valid_placements(MODEL_FACTS["dropping"]))
"""Chains, labels that stay, and shared blocks."""
UPDATES = st.sampled_from([{}, {"accumulate_batches": 2}, {"clip_norm": 0.5, "clip": "model"}, {"samples_ahead": 2}])
"""Updates of every batch, of several, with one norm for all blocks, and with samples ahead."""


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(ANY, st.sampled_from(sorted(POLICIES)), UPDATES, st.randoms(use_true_random=False))
def test_an_order_of_events_decides_every_bit(placement, policy, updates, dice):
    told, module = recipe("adam", **updates), built("dropping")
    batches = [batch_of(step, placement.batch_size) for step in range(STEPS)]
    session = LooseSession(module, placement, told, policy, random.Random(dice.random()))
    session.train(batches)
    assert session.most_unanswered <= session.plan.ahead + 1
    for blocks in session.blocks.values():
        assert all(0 <= staleness <= placement.staleness for staleness in blocks.staleness)
    replayed = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    simulated = in_process(replayed, placement, told, policy)
    simulated.replay(session.turns, iter(batches))
    assert_same_bits(state_of(replayed, placement), state_of(session.chains, placement))


@settings(max_examples=examples(30), deadline=None)
@given(chains(), UPDATES, st.randoms(use_true_random=False))
def test_without_staleness_the_order_decides_nothing(placement, updates, dice):
    placement = replace(placement, staleness=0)
    told, module = recipe("sgd", **updates), built("dropping")
    batches = [batch_of(step, placement.batch_size) for step in range(STEPS)]
    session = LooseSession(module, placement, told, "replay", random.Random(dice.random()))
    session.train(batches)
    in_turn = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
    in_process(in_turn, placement, told).train(0, STEPS, iter(batches))
    assert_same_bits(state_of(in_turn, placement), state_of(session.chains, placement))
