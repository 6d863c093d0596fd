"""The ranking of candidates equals trying everything, and is that of the search for each."""

import math
import random
from dataclasses import replace

import pytest

from benchmarks.planning.choice import random_candidates, seconds_per_ranking, share_within, tuned
from edge_agent.planning import (
    Linear,
    ProfiledBlock,
    Question,
    Rates,
    SearchSpace,
    best,
    conditions_of,
    pair_profile,
)
from edge_agent.planning.candidates import Candidate, ranked_candidates
from edge_agent.planning.families.pair import best_pairs
from shared.errors import PlanError
from tests.support.planning.cases import small_profile

BLOCKS, TRAINERS, WIDTHS = 30, 8, (2, 8, 32)


def random_case(seed):
    """Return the lists of a profile of 30 blocks, and 8 trainers."""
    draw = random.Random(seed)
    inner = [None, *(draw.uniform(1e3, 1e7) for _ in range(BLOCKS - 1)), None]
    lists = {
        "feature_bytes": tuple(inner),
        "gradient_bytes": tuple(size and size * draw.choice((0.5, 1.0)) for size in inner),
        "edge_seconds": (None, *(draw.uniform(0.01, 2.0) for _ in range(BLOCKS))),
        "cloud_seconds": (None, *(draw.uniform(0.001, 0.5) for _ in range(BLOCKS))),
        "serial_edge_seconds": (None, *(draw.uniform(0.01, 2.0) for _ in range(BLOCKS))),
    }
    min_bits = (None, *(draw.choice((2, 8, 32)) for _ in range(BLOCKS - 1)), None)
    return lists, min_bits, draw.randint(0, 5), random_candidates(draw, TRAINERS)


ENCODE = Linear(1e-3, 1e-9)


def profile_of(lists, min_bits, max_staleness):
    return pair_profile(
        model="random",
        batch_size=32,
        blocks=tuple(ProfiledBlock(f"block{i}", 1e6) for i in range(BLOCKS)),
        encode=ENCODE,
        min_bits=min_bits,
        max_staleness=max_staleness,
        **lists,
    )


def tried_one_by_one(lists, min_bits, max_staleness, candidates):
    """Return the least seconds a step with each candidate by Eq. 9 to 12, one deployment after another."""
    alone = [lists[name][BLOCKS] for name in ("serial_edge_seconds", "edge_seconds")]
    found = {"edge": min(alone[: 1 + bool(max_staleness)])}
    for each in candidates:
        factor = each.cloud_factor / max(1.0 - each.busy, 1.0 / (each.sessions + 1))
        seconds = []
        for cut in range(1, BLOCKS):
            for bits in (bits for bits in WIDTHS if bits >= min_bits[cut]):
                feature = lists["feature_bytes"][cut]
                encoding = ENCODE.at(feature) if bits < 32 else 0.0
                up = feature * 8 * bits / 32 / each.rates.uplink
                down = lists["gradient_bytes"][cut] * 8 / each.rates.downlink
                cloud = lists["cloud_seconds"][cut] * factor
                for staleness in range(max_staleness + 1):
                    edge = lists["edge_seconds" if staleness else "serial_edge_seconds"][cut] + encoding
                    total = edge + up + cloud + down + each.rates.round_trip_seconds
                    seconds.append(max(edge, up, cloud, down, total / (staleness + 1)))
        found[each.name] = min(seconds)
    return found


def check_brute_force(seeds):
    for seed in seeds:
        lists, min_bits, max_staleness, candidates = random_case(seed)
        ranked = ranked_candidates(
            Question(profile_of(lists, min_bits, max_staleness), SearchSpace(WIDTHS)), candidates
        )
        expected = tried_one_by_one(lists, min_bits, max_staleness, candidates)
        seconds = [one.seconds_per_step for one in ranked]
        assert {one.layout.workers[-1]: one.seconds_per_step for one in ranked} == pytest.approx(expected), seed
        assert seconds == sorted(seconds)


def test_a_ranking_equals_trying_everything():
    check_brute_force(range(10))


@pytest.mark.slow
def test_a_thousand_rankings_equal_trying_everything():
    check_brute_force(range(10, 1000))


def test_each_candidate_has_the_layout_that_the_search_finds_for_it():
    for seed in range(20):
        lists, min_bits, max_staleness, candidates = random_case(seed)
        profile = profile_of(lists, min_bits, max_staleness)
        space = SearchSpace(WIDTHS, allow_edge_only=False)
        ranked = {one.layout.workers[-1]: one for one in ranked_candidates(Question(profile, space), candidates)}
        assert set(ranked) == {each.name for each in candidates}, "without the device alone where it is excluded"
        for each in candidates:
            slowed = profile.with_worker(profile.workers[1].slowed(each.factor)).named(("edge", each.name))
            found = best(Question(slowed, space), conditions_of(slowed, {("edge", each.name): each.rates}))
            assert ranked[each.name].layout == found.layout
            assert ranked[each.name].seconds_per_step == pytest.approx(found.seconds_per_step)


def test_a_busy_trainer_is_slower_and_never_slower_than_an_equal_share():
    one = Candidate("one", Rates(1e9, 1e9))
    assert one.factor == 1.0
    assert replace(one, busy=0.5, sessions=9).factor == pytest.approx(2.0)
    assert replace(one, busy=1.0, sessions=1).factor == pytest.approx(2.0)
    assert replace(one, busy=1.0, sessions=0).factor == 1.0
    assert replace(one, cloud_factor=0.7, busy=0.9, sessions=3).factor == pytest.approx(0.7 * 4)


def test_of_equals_the_device_alone_comes_first_and_then_the_given_order():
    fast = Rates(1e12, 1e12)
    profile = small_profile(edge_seconds=(None, 1.0, 1.0, 1.0, 1.0), cloud_seconds=(None, 0.1, 0.1, 0.1, 0.0))
    ranked = ranked_candidates(Question(profile), [Candidate("b", fast), Candidate("a", fast)])
    assert [one.layout.workers[-1] for one in ranked] == ["edge", "b", "a"]
    assert ranked[1].seconds_per_step == 1.0


def test_a_profile_of_a_chain_is_refused():
    with pytest.raises(PlanError, match=r"candidates are trainers for one cut.*max_staleness"):
        best_pairs(Question(replace(small_profile(), max_staleness=None)))


def test_a_ranking_of_8_trainers_and_150_blocks_is_made_at_once():
    assert len(seconds_per_ranking(8, 150, 3)) == 3, "benchmarks.planning.choice says how long it takes"


def check_tuning(seeds, share):
    cases = [tuned(seed) for seed in seeds]
    assert all(case.changes <= 4 for case in cases)
    assert share_within([case.tuned for case in cases]) >= share
    assert share_within([case.tuned for case in cases]) >= share_within([case.climbed for case in cases])
    assert not any(math.isnan(case.tuned) for case in cases)


def test_where_a_profile_is_25_percent_off_four_changes_lead_near_the_best():
    check_tuning(range(60), 0.95)


@pytest.mark.slow
def test_a_thousand_profiles_that_are_25_percent_off_are_mended_by_four_changes():
    check_tuning(range(1000), 0.95)
