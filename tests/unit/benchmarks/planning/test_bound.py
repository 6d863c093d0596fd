"""The lower bound, compared with runs that try to beat it."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.bound import least_seconds_per_100_steps, most_steps
from benchmarks.rivals.pair import edge_only
from edge_agent.planning import (
    Decision,
    LinkTrace,
    ProfiledBlock,
    Rates,
    SearchSpace,
    Setting,
    Trace,
    compare,
    greedy,
    simulate,
)
from tests.support.examples import examples
from tests.support.planning.cases import AT_8_MBIT, MBIT, asked, pair, profiles, small_profile

SECONDS = 120.0
WIDTHS = (2, 8, 32)
FLOAT_SLACK = 1e-9

pieces = st.lists(st.tuples(st.floats(0.5, 60.0), st.just(0.0) | st.floats(1e4, 1e9)), min_size=1, max_size=6).filter(
    lambda found: any(rate for _, rate in found)
)
traces = pieces.map(lambda found: Trace.of_durations([each for each, _ in found], [rate for _, rate in found]))
links = st.builds(LinkTrace, traces, traces, st.just(0.0) | st.floats(0.0, 2.0))


class Whims:
    """An engine that takes random decisions, a new one each second."""

    names = ("edge", "trainer")

    def __init__(self, draw):
        self._draw = draw

    def observe(self, *_):
        wanted = self._draw()
        return wanted and Decision(wanted, math.nan, math.nan, math.nan, math.inf)

    def next_search(self):
        return None

    def note_deployed(self, seconds, deployment):
        pass


@given(profiles(max_blocks=4, complete=True), links, st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_no_run_beats_the_bound_whatever_is_changed_and_when(profile, link, chance):
    profile = dataclasses.replace(profile, min_bits=None)

    def anything():
        cut = chance.randint(1, len(profile))
        bits = 32 if cut == len(profile) else chance.choice(WIDTHS)
        return pair(cut, chance.randint(0, profile.max_staleness), bits, profile)

    def sometimes():
        return anything() if chance.random() < 0.5 else None

    most = most_steps(profile, link, SECONDS, SearchSpace(WIDTHS), begin=5.0)
    for engine in (None, Whims(sometimes), Whims(anything)):
        assert simulate(profile, [link], anything(), SECONDS, engine, begin=5.0).steps <= most * (1.0 + FLOAT_SLACK)


def test_a_slow_link_beside_quick_blocks_rounds_nothing_away():
    """The bits of a link and the seconds of a block differ by orders of magnitude, and the solver has one tolerance for
    both."""
    profile = small_profile(
        blocks=tuple(ProfiledBlock(f"b{index}", 0.0) for index in range(3)),
        feature_bytes=(1.0, 1250000.0, 1.0, None),
        gradient_bytes=(1.0, 1.0, 4999983.0, None),
        edge_seconds=(1.0, 1.0, 1.0, 0.5),
        serial_edge_seconds=(None, 2.0, None, 1.0),
        cloud_seconds=(1.0, 1.0, 1.0, 0.0),
        max_staleness=1,
    )
    for uplink in (Trace.of_durations([1.0, 2.0], [0.0, 125001.0]), Trace.of_durations([1.0, 1.0], [0.0, 99696.0])):
        link = LinkTrace(uplink, Trace.constant(10000.0))
        alone = simulate(profile, [link], pair(3, 1, 32), SECONDS, begin=5.0).steps
        assert alone == pytest.approx(240.0)
        assert alone <= most_steps(profile, link, SECONDS, SearchSpace(WIDTHS), begin=5.0) <= alone + 2.0


@given(profiles(max_blocks=4, complete=True), links, st.sampled_from([(2, 8, 32), (8,)]), st.none() | st.integers(0, 6))
@settings(max_examples=examples(15), deadline=None)
def test_no_planner_beats_the_bound(profile, link, bits, staleness):
    profile = dataclasses.replace(profile, min_bits=None)
    space = SearchSpace(bits, staleness)
    least = least_seconds_per_100_steps(profile, link, space, SECONDS)
    runs = compare(Setting(profile, [link], space, SECONDS))
    assert len(runs) == 5
    assert all(run.seconds_per_100_steps >= least / (1.0 + FLOAT_SLACK) for run in runs.values())


def test_on_a_steady_link_with_one_thing_to_do_the_bound_is_what_is_done():
    profile = small_profile(
        blocks=(ProfiledBlock("a", 1e6), ProfiledBlock("b", 1e6)),
        feature_bytes=(None, 1e6, None),
        gradient_bytes=(None, 1e6, None),
        edge_seconds=(None, 3.0, None),
        serial_edge_seconds=(None, 2.0, None),
        cloud_seconds=(None, 0.2, None),
    )
    for round_trip_seconds in (0.0, 5.0, 60.0):
        rates = Rates(8 * MBIT, 8 * MBIT, round_trip_seconds)
        link = LinkTrace(Trace.constant(rates.uplink), Trace.constant(rates.downlink), round_trip_seconds)
        for staleness in (0, 3):
            space = SearchSpace((32,), staleness)
            each = greedy(*asked(profile, rates, space, 10_000)).seconds_per_step
            found = most_steps(dataclasses.replace(profile, max_staleness=staleness), link, 10_000.0, space)
            assert found == pytest.approx(10_000.0 / each, rel=0.01)


def test_over_a_dead_link_the_bound_is_edge_only_and_hardly_a_step_where_that_is_forbidden():
    dead = LinkTrace(Trace.constant(1.0), Trace.constant(1.0), 10.0)
    alone = edge_only(*asked(small_profile(), AT_8_MBIT)).seconds_per_step
    assert most_steps(small_profile(), dead, 10_000.0, SearchSpace()) == pytest.approx(10_000.0 / alone, rel=0.01)
    assert most_steps(small_profile(), dead, 10_000.0, SearchSpace(allow_edge_only=False)) < 2.0
