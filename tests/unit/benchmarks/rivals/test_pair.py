"""Rivals of the planners of two workers, compared with trying everything in exact arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.pair import PLANNERS, edge_only, fixed, jointdnn
from edge_agent.planning import Rates, SearchSpace
from shared.errors import PlanError
from tests.support.planning.cases import AT_8_MBIT, asked, pair, profiles, rates, small_profile
from tests.support.planning.exact_pairs import check_costs_as_said, exact_costs, flat_profile

each_planner = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)


@given(profiles(complete=True), rates, st.booleans(), st.integers(1, 100))
def test_jointdnn_is_the_serial_optimum(profile, link, allow_edge_only, horizon):
    serial = SearchSpace((32,), 0, allow_edge_only=allow_edge_only)
    costs = exact_costs(profile, link, serial, 1, None)
    plan = jointdnn(*asked(profile, link, SearchSpace(allow_edge_only=allow_edge_only), horizon))
    assert float(costs[plan.layout]) == pytest.approx(float(min(costs.values())), rel=1e-9)
    whole = exact_costs(profile, link, serial, horizon, None)[plan.layout]
    assert plan.seconds_per_step == pytest.approx(float(whole / horizon), rel=1e-9)


def test_edge_only_has_all_blocks_on_the_edge():
    quick = flat_profile(edge_seconds=(None, 9.0, 9.0, 9.0, 9.0, 0.5))
    assert edge_only(*asked(quick, Rates(8.0, 8.0))).layout == pair(5, 0, 32, quick)
    assert edge_only(*asked(quick, Rates(8.0, 8.0))).seconds_per_step == 0.5


def test_unmeasured_edge_only_is_refused():
    with pytest.raises(PlanError, match="at cut 4"):
        edge_only(*asked(small_profile(edge_seconds=(None, 1.0, 2.0, 3.0, None)), AT_8_MBIT))


def test_forbidden_edge_only_is_refused():
    with pytest.raises(PlanError, match="edge-only is not allowed here"):
        edge_only(*asked(small_profile(), AT_8_MBIT, SearchSpace(allow_edge_only=False)))


def test_a_fixed_deployment_is_costed_as_it_is():
    plan = fixed(*asked(small_profile(), AT_8_MBIT, None, 10, from_cut=1), pair(2, 0, 32))
    assert plan.layout == pair(2, 0, 32)
    assert plan.seconds_per_step == pytest.approx(2.0 + 2.0 + 0.3 + 2.0)
    assert plan.migration_seconds == pytest.approx(2.0)
    assert plan.evaluated == 1


@each_planner
@pytest.mark.parametrize(("horizon", "from_cut"), [(0, None), (-1, None), (1, 0), (1, 5)])
def test_a_start_out_of_range_is_refused(planner, horizon, from_cut):
    with pytest.raises(PlanError, match="it must be 1 or more" if horizon < 1 else "it must be from 1 to 4"):
        planner(*asked(small_profile(), AT_8_MBIT, None, horizon, from_cut))


@each_planner
@given(profiles(complete=True), rates, st.integers(1, 500), st.data())
def test_every_planner_says_what_its_deployment_costs(planner, profile, link, horizon, data):
    check_costs_as_said(planner, profile, link, horizon, data.draw(st.none() | st.integers(1, len(profile))))
