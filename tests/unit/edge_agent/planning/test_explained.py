"""Reasons against the plans after the best: the busiest part of a step, a batch's way, or the exactness that they cost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planning import Plan, Question, Rates, SearchSpace, accurate, best, parts_of, ranked
from edge_agent.planning.families.registry import listed
from tests.support.planning.cases import AT_8_MBIT, asked, pair, profiles, rates, small_profile

AT = over(small_profile(), AT_8_MBIT)
QUESTION = Question(small_profile(), SearchSpace((32,), staleness=1))


def reason(layout, at=AT):
    (one,) = ranked(QUESTION, at, Plan(layout, 1.0), 0)
    return one.reason


def test_the_busiest_part_is_named_where_a_step_takes_as_long():
    assert reason(pair(3, 1, 32)) == "edge works 3 s"
    slow = over(small_profile(), Rates(1e6, 8e6))
    assert reason(pair(3, 1, 32), slow) == "edge to trainer takes 8 s"


def test_a_batch_that_is_under_way_for_long_is_named_where_no_part_is_that_busy():
    assert reason(pair(3, 0, 32)) == "a batch is under way for 5.2 s"
    far = over(small_profile(), Rates(8e6, 8e6, 10.0))
    assert reason(pair(3, 1, 32), far) == "a batch is under way for 15.2 s, and 2 batches share it"


@given(profiles(complete=True), rates)
def test_the_others_are_the_best_of_all_that_are_left_and_only_the_less_exact_are_faster(profile, link):
    space, at = SearchSpace((4, 32)), over(profile, link)
    question, plan = Question(profile, space), accurate(*asked(profile, link, space))
    first, *others = ranked(question, at, plan, 4)
    assert first.layout == plan.layout
    layouts, loads = listed(question)
    seconds = dict(zip(layouts, loads.seconds(at).tolist(), strict=True))
    chosen = seconds.pop(plan.layout, None)
    assert [one.seconds_per_step for one in others] == pytest.approx(sorted(seconds.values())[:4])
    for one in others:
        if chosen is not None and one.seconds_per_step < chosen * (1 - 1e-6):
            assert re.search(r"faster, but (with fewer bits|with a larger K|the planner prefers)", one.reason)


@given(profiles(complete=True), rates, st.integers(0, 3))
def test_nothing_is_faster_than_the_best_and_every_part_of_it_is_within_its_step(profile, link, staleness):
    question, at = Question(profile, SearchSpace((8, 32), staleness)), over(profile, link)
    plan = best(question, at)
    assert all(" faster" not in one.reason for one in ranked(question, at, plan, 4))
    parts = parts_of(question, plan.layout, at)
    busy = [*parts.workers.values(), *(seconds for both in parts.links.values() for seconds in both)]
    assert max(busy) <= plan.seconds_per_step * (1 + 1e-9)
