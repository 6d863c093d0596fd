"""Planners, compared with trying everything in exact arithmetic, and their rules about permitted choices."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planner_names import EXACTNESS_MARGIN, GREEDY, PLANNER_NAMES, TIER_PLANNER_NAMES
from edge_agent.planning import (
    FLOAT32_BITS,
    PLANNERS,
    TWO_WORKERS,
    LinkTrace,
    Question,
    Rates,
    SearchSpace,
    Setting,
    Trace,
    accurate,
    best,
    compare,
    conditions_of,
    first_layout,
    greedy,
    parts_of,
)
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.planners.registry import TIERS
from shared.errors import PlanError
from tests.support.planning.cases import AT_8_MBIT, asked, pair, profiles, rates, small_profile
from tests.support.planning.exact_pairs import check_costs_as_said, exact_costs, flat_profile

widths = st.lists(st.integers(1, FLOAT32_BITS), min_size=1, max_size=4, unique=True).map(tuple)
each_planner = pytest.mark.parametrize("planner", PLANNERS[TWO_WORKERS].values(), ids=PLANNERS[TWO_WORKERS])
spaces = st.builds(SearchSpace, bits=widths, staleness=st.none() | st.integers(0, 6), allow_edge_only=st.booleans())


@given(profiles(), rates, spaces, st.integers(1, 500), st.data())
def test_greedy_equals_trying_everything(profile, link, space, horizon, data):
    from_cut = data.draw(st.none() | st.integers(1, len(profile)))
    costs = exact_costs(profile, link, space, horizon, from_cut)
    if not costs:
        with pytest.raises(PlanError, match="no deployment to choose"):
            greedy(*asked(profile, link, space, horizon, from_cut))
        return
    plan = greedy(*asked(profile, link, space, horizon, from_cut))
    assert float(costs[plan.layout]) == pytest.approx(float(min(costs.values())), rel=1e-9)
    assert plan.seconds_per_step * horizon + plan.migration_seconds == pytest.approx(
        float(costs[plan.layout]), rel=1e-9
    )
    assert plan.evaluated >= len(costs)


@given(profiles(), rates, spaces)
def test_the_best_of_all_families_equals_trying_every_pair_over_an_endless_run(profile, link, space):
    steps = 60 * 10**9
    costs = exact_costs(profile, link, space, steps, None)
    question, at = Question(profile, space), conditions_of(profile, {profile.names: link})
    if not costs:
        with pytest.raises(PlanError, match="no deployment to choose"):
            best(question, at)
        return
    found = best(question, at)
    assert found.seconds_per_step == pytest.approx(float(min(costs.values()) / steps), rel=1e-6)
    assert float(costs[found.layout] / steps) == pytest.approx(found.seconds_per_step, rel=1e-6)


@given(profiles(), rates, spaces, st.integers(1, 500), st.data())
def test_the_accurate_plan_is_the_most_exact_within_the_margin_of_the_best_of_all(profile, link, space, horizon, data):
    from_cut = data.draw(st.none() | st.integers(1, len(profile)))
    costs = exact_costs(profile, link, space, horizon, from_cut)
    if not costs:
        with pytest.raises(PlanError, match="no deployment to choose"):
            accurate(*asked(profile, link, space, horizon, from_cut))
        return
    plan = accurate(*asked(profile, link, space, horizon, from_cut))
    most = (1 + Fraction(EXACTNESS_MARGIN)) * min(costs.values())
    rounding = Fraction(1, 10**9)
    assert costs[plan.layout] <= most * (1 + rounding)

    def inexactness(deployment):
        return (-(*deployment.bits, max(space.bits))[0], deployment.staleness)

    chosen = inexactness(plan.layout)
    surely_within = [one for one, cost in costs.items() if cost <= most * (1 - rounding)]
    assert all(inexactness(one) >= chosen for one in surely_within)
    as_exact = [costs[one] for one in costs if inexactness(one) == chosen]
    assert float(costs[plan.layout]) == pytest.approx(float(min(as_exact)), rel=1e-9)
    assert plan.evaluated >= len(costs)


def test_few_bits_are_taken_for_more_than_the_margin_and_not_for_less():
    """There is one cut. Its link bounds a step at 32 bits by this much more than the device does."""

    def bits_where_32_take(share):
        profile = flat_profile(
            feature_bytes=(0.0, share, 0.0, 0.0, 0.0, 0.0), gradient_bytes=(0.0,) * 6, cloud_seconds=(0.0,) * 6
        )
        space = SearchSpace((2, 4, 8, 32), cuts=(1,), staleness=7)
        return accurate(*asked(profile, Rates(8.0, 8.0), space, horizon_steps=1_000_000)).layout.bits[0]

    assert bits_where_32_take(1.0 + EXACTNESS_MARGIN - 0.001) == 32
    assert bits_where_32_take(1.0 + EXACTNESS_MARGIN + 0.001) == 8


def test_staleness_is_taken_for_more_than_the_margin_and_not_for_less():
    """A batch is away for this share of a step, which any K hides."""

    def staleness_where_away_for(share):
        plain = flat_profile(feature_bytes=(0.0,) * 6, gradient_bytes=(0.0,) * 6, cloud_seconds=(0.0,) * 6)
        return accurate(*asked(plain, Rates(8.0, 8.0, share), SearchSpace(allow_edge_only=False))).layout.staleness

    assert staleness_where_away_for(EXACTNESS_MARGIN - 0.001) == 0
    assert staleness_where_away_for(EXACTNESS_MARGIN + 0.001) == 1


@given(profiles(complete=True), rates, spaces)
def test_a_run_begins_with_the_plan_and_a_staleness_that_the_engine_weighs(profile, link, space):
    assume(exact_costs(profile, link, space, 1, None))
    plan, first = greedy(*asked(profile, link, space)), first_layout(*asked(profile, link, space))
    assert (first.tiles, first.widths) == (plan.layout.tiles, plan.layout.widths)
    assert first.staleness in space.best_staleness(profile)
    if plan.layout.staleness in space.best_staleness(profile):
        assert first == plan.layout


def test_a_plan_by_hand():
    split = SearchSpace((32,), staleness=1, allow_edge_only=False)
    plan = greedy(*asked(small_profile(), AT_8_MBIT, split, horizon_steps=4, from_cut=3))
    # At cut 3, T = 3, 1, 0.2, 1; T_sum - 2 T_max < 0, so Eq. 12 is 3 x 3 + 5.2. Cut 2 has 2 x 3 + 6.3 + 0.3, and 3 to move.
    assert plan.layout == pair(3, 1, 32)
    parts = parts_of(Question(small_profile()), plan.layout, over(small_profile(), AT_8_MBIT))
    assert parts.workers == pytest.approx({"edge": 3.0, "trainer": 0.2})
    assert parts.links == {("edge", "trainer"): pytest.approx((1.0, 1.0))}
    assert plan.seconds_per_step == pytest.approx(14.2 / 4)
    assert plan.migration_seconds == 0.0
    assert plan.evaluated == 3


def test_without_replay_no_staleness_can_be_the_quickest():
    profile = small_profile(serial_edge_seconds=(None, 0.1, 0.1, 0.1, None))
    fast = Rates(1e12, 1e12)
    plan = greedy(*asked(profile, fast, SearchSpace((32,))))
    assert plan.layout == pair(3, 0, 32)
    assert parts_of(Question(profile), plan.layout, over(profile, fast)).workers["edge"] == pytest.approx(0.1)
    assert plan.seconds_per_step == pytest.approx(0.3, rel=1e-3)
    assert greedy(*asked(profile, fast, SearchSpace((32,), staleness=2))).layout == pair(1, 2, 32)


def test_of_equals_it_takes_todays_cut_then_the_smallest():
    at = Rates(8.0, 8.0)
    space = SearchSpace((32,), allow_edge_only=False)
    assert greedy(*asked(flat_profile(), at, space, from_cut=3)).layout.tiles[0].stop == 3
    assert greedy(*asked(flat_profile(), at, space)).layout.tiles[0].stop == 1
    assert (
        greedy(*asked(flat_profile(edge_seconds=(None, None, 1.0, 1.0, 1.0, 1.0)), at, space)).layout.tiles[0].stop == 2
    )


def test_of_equals_it_takes_most_bits_and_least_staleness():
    space = SearchSpace((2, 8, 32), allow_edge_only=False)
    plan = greedy(*asked(flat_profile(feature_bytes=(0.0,) * 6), Rates(8.0, 8.0), space, horizon_steps=64))
    assert plan.layout.bits[0] == 32
    assert plan.layout.staleness == 2  # T = 1, 0, 1, 1: three batches keep every module busy


def test_the_data_stays_on_the_edge():
    free_cloud = flat_profile(edge_seconds=(0.0, 9.0, 9.0, 9.0, 9.0, 9.0))
    assert greedy(*asked(free_cloud, Rates(8.0, 8.0))).layout.tiles[0].stop >= 1


def test_edge_only_is_chosen_where_it_is_the_quickest_and_is_not_forbidden():
    quick = flat_profile(edge_seconds=(None, 9.0, 9.0, 9.0, 9.0, 0.5))
    assert greedy(*asked(quick, Rates(8.0, 8.0), SearchSpace(allow_edge_only=False))).layout.tiles[0].stop < 5
    plan = greedy(*asked(quick, Rates(8.0, 8.0)))
    assert plan.layout == pair(5, 0, 32, quick)
    parts = parts_of(Question(quick), plan.layout, over(quick, Rates(8.0, 8.0)))
    assert (parts.workers, parts.links) == ({"edge": 0.5}, {})


def test_the_calibration_bounds_the_bits():
    profile = small_profile(min_bits=(None, 32, None, 8, None))
    plan = greedy(*asked(profile, AT_8_MBIT, SearchSpace((2, 4, 8), allow_edge_only=False)))
    assert plan.layout.tiles[0].stop == 3
    assert plan.layout.bits[0] == 8
    with pytest.raises(PlanError, match="no deployment to choose at any cut with 2, 4 bits"):
        greedy(*asked(profile, AT_8_MBIT, SearchSpace((2, 4), allow_edge_only=False)))


def test_the_calibration_does_not_bound_other_codecs():
    profile = small_profile(min_bits=(None, 32, None, 8, None))
    space = SearchSpace((2, 4), allow_edge_only=False, uncalibrated_bits=(2,))
    assert greedy(*asked(profile, AT_8_MBIT, space)).layout.bits[0] == 2
    assert set(listed_pairs(profile, space, (0,)).bits.tolist()) == {2}


def test_a_staleness_that_is_given_is_taken():
    for staleness in (0, 2, 9):
        assert (
            greedy(*asked(small_profile(), AT_8_MBIT, SearchSpace(staleness=staleness))).layout.staleness == staleness
        )


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (SearchSpace(cuts=(0,), allow_edge_only=False), "the cut is 0; with 4 blocks it must be from 1 to 3"),
        (SearchSpace(cuts=(4,), allow_edge_only=False), "edge-only is not allowed"),
        (SearchSpace(cuts=(0,)), "the cut is 0; with 4 blocks it must be from 1 to 4"),
        (SearchSpace(cuts=(5,)), "must be from 1 to 4"),
        (SearchSpace(cuts=(-1,)), "the cut is -1"),
        (SearchSpace(staleness=-1), "the staleness is -1; it must be 0 or more"),
        (SearchSpace(bits=()), "the bit widths are none"),
        (SearchSpace(bits=(8, 33)), "the bit widths are 8, 33; each must be an integer of 1 to 32"),
    ],
)
def test_a_space_out_of_range_is_refused(space, said):
    with pytest.raises(PlanError, match=said):
        greedy(*asked(small_profile(), AT_8_MBIT, space))


@each_planner
@pytest.mark.parametrize(("horizon", "from_cut"), [(0, None), (-1, None), (1, 0), (1, 5)])
def test_a_start_out_of_range_is_refused(planner, horizon, from_cut):
    with pytest.raises(PlanError, match="it must be 1 or more" if horizon < 1 else "it must be from 1 to 4"):
        planner(*asked(small_profile(), AT_8_MBIT, None, horizon, from_cut))


@each_planner
@given(profiles(complete=True), rates, st.integers(1, 500), st.data())
def test_every_planner_says_what_its_deployment_costs(planner, profile, link, horizon, data):
    check_costs_as_said(planner, profile, link, horizon, data.draw(st.none() | st.integers(1, len(profile))))


LINK_AT_8_MBIT = LinkTrace(Trace.constant(8e6), Trace.constant(8e6))


@pytest.mark.parametrize("name", [name for name in PLANNERS[TWO_WORKERS] if name != GREEDY])
def test_the_choice_of_another_planner_than_greedy_is_kept(name):
    profile = small_profile()
    (run,) = compare(Setting(profile, [LINK_AT_8_MBIT], SearchSpace(), 60.0), (name,)).values()
    assert run.start == PLANNERS[TWO_WORKERS][name](*asked(profile, AT_8_MBIT, SearchSpace())).layout
    assert not run.switches


def test_command_lines_name_all_planners_and_all_of_them_are_compared():
    assert {*PLANNERS[TWO_WORKERS]} == set(PLANNER_NAMES)
    assert {*PLANNERS[TIERS]} == set(TIER_PLANNER_NAMES)
    setting = Setting(small_profile(), [LINK_AT_8_MBIT], SearchSpace(), 1.0)
    assert [*compare(setting, PLANNER_NAMES)] == [*PLANNER_NAMES]
