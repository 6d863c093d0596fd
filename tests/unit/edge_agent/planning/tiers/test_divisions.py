"""Divisions among three tiers: what may be chosen, the layouts that they make, and which a placement is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import Question, SearchSpace
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import layout_of
from edge_agent.planning.families.tiers.divisions import Division, divisions_of, layout_of_division
from edge_agent.planning.profile import parse_profile
from edge_agent.planning.profile_operations import coded, facts_of
from shared.placement import Permissions, check
from tests.support.planning.tiers import NAMES, tiers_document

PROFILE = parse_profile(tiers_document(5, 12, seed=1, codecs=True), "tiers")
BOTH = frozenset(NAMES[1:])


def choices_of(inputs_to=frozenset(), bits=(32,), profile=PROFILE):
    return Choices(Question(profile, SearchSpace(bits, 0, inputs_to=inputs_to)))


def everything(choices):
    return choices.listed(range(choices.first_cut, 6), range(1, 13))


def placements(choices, count=300):
    every = everything(choices)
    for row in np.random.default_rng(0).choice(every.rows, min(count, every.rows), replace=False):
        one = every.take(np.array([row]))
        yield one.division(0, NAMES), coded(PROFILE, layout_of(one, NAMES, 5, 12, 0))


@pytest.mark.parametrize("inputs_to", [frozenset(), frozenset({"gpu"}), BOTH])
def test_every_division_is_a_valid_placement_that_sends_no_sample_where_none_may_go(inputs_to):
    for _, placement in placements(choices_of(inputs_to)):
        check(placement, facts_of(PROFILE), Permissions(inputs_to=inputs_to, gradients_to=BOTH))


def test_by_default_the_device_alone_runs_the_first_blocks():
    assert everything(choices_of()).before.min() == 1
    assert everything(choices_of(BOTH)).before.min() == 0


def test_all_orders_of_roles_are_listed():
    every = everything(choices_of())
    both = every.short_samples > 0
    orders = set(zip(*(role[both].tolist() for role in (every.original, every.short, every.long)), strict=True))
    assert len(orders) == 6


def test_no_part_is_smaller_than_a_block_can_compute_on():
    facts = facts_of(PROFILE)
    for _, placement in placements(choices_of(BOTH), 1000):
        for tile in placement.tiles:
            assert tile.rows.count >= max(facts.blocks[block].min_samples for block in tile.blocks)


def test_other_shares_code_no_raw_samples():
    """A trainer that gets no samples of the first block, and then some, has a route of raw samples from then on."""
    choices = choices_of(BOTH, (8, 32))
    every = everything(choices)
    coded_rows = np.flatnonzero((every.before == 0) & (every.widths.reshape(-1, 9) < 32).any(axis=1))
    moved, permitted = choices.with_other_shares(every.take(coded_rows[::50]), 1)
    for row in permitted[::20]:
        placement = coded(PROFILE, layout_of(moved.take(np.array([row])), NAMES, 5, 12, 0))
        raw = {tile.worker for tile in placement.holders(0)} - {"edge"}
        assert not any(route.sender == "edge" and route.receiver in raw for route in placement.codecs)


def test_a_width_may_differ_on_every_route_that_carries_features_and_raw_samples_travel_as_they_are():
    every = everything(choices_of(BOTH, (8, 32)))
    counted = {}
    for row in range(0, every.rows, 37):
        layout = layout_of(every.take(np.array([row])), NAMES, 5, 12, 0)
        placement = coded(PROFILE, layout)
        raw = {tile.worker for tile in placement.holders(0)} - {"edge"}
        assert not any(route.sender == "edge" and route.receiver in raw for route in placement.codecs)
        counted[len(placement.codecs)] = counted.get(len(placement.codecs), 0) + 1
    assert set(counted) >= {0, 1, 2}


def counts_of(placement):
    return [{tile.worker: tile.rows.count for tile in placement.holders(block)} for block in range(placement.blocks)]


@given(st.sampled_from(list(placements(choices_of(BOTH), 60))))
def test_a_placement_is_known_as_a_division_that_makes_it(case):
    division, placement = case
    found = list(divisions_of(placement, NAMES))
    assert division in found
    for each in found:
        again = coded(PROFILE, layout_of_division(each, 5, 12, "edge", 0, {}))
        assert (counts_of(again), again.owners) == (counts_of(placement), placement.owners)


def test_a_placement_of_another_kind_is_no_division():
    division = Division("gpu", "edge", "near", 1, 3, 4, 3, 4)
    placement = coded(PROFILE, layout_of_division(division, 5, 12, "edge", 0, {}))
    assert list(divisions_of(placement, NAMES)) == [division]
    assert not list(divisions_of(replace(placement, owners=dict(placement.owners) | {2: "near"}), NAMES))


def test_neighbours_are_divisions_that_may_be_chosen():
    small = parse_profile(tiers_document(3, 6, seed=1, codecs=True), "tiers")
    choices = choices_of(frozenset(), (8, 32), small)
    every = choices.listed(range(1, 4), range(1, 7))

    def layouts(of, rows):
        return {layout_of(of.take(np.array([row])), NAMES, 3, 6, 0) for row in rows}

    known = layouts(every, range(every.rows))
    for row in range(0, every.rows, 97):
        others = choices.neighbours(every.take(np.array([row])))
        assert layouts(others, range(others.rows)) <= known
