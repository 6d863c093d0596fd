"""Rivals as the commands find them: where the benchmarks are installed, and where they are not."""

import tomllib
from importlib.metadata import EntryPoint, entry_points

import pytest

from benchmarks.rivals import pair
from edge_agent.planning import LinkTrace, SearchSpace, Setting, Trace, compare, installed, parse_profile
from shared.errors import PlanError
from tests.conftest import ROOT
from tests.support.planning.cases import AT_8_MBIT, asked, small_profile
from tests.support.planning.chains import chain_document

LINK = LinkTrace(Trace.constant(8e6), Trace.constant(8e6))
PAIR = Setting(small_profile(), [LINK], SearchSpace(), 60.0)
CHAIN = Setting(parse_profile(chain_document(8, 3, seed=3), "chain"), [LINK, LINK], SearchSpace(), 60.0)


@pytest.fixture
def alone(monkeypatch):
    """Have no other package than the product."""
    monkeypatch.setattr(installed, "entry_points", lambda **_: ())


def test_what_the_benchmarks_declare_is_installed_and_can_be_loaded():
    declared = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {*declared} == {installed.GROUP}
    found = {point.name: point.value for point in entry_points(group=installed.GROUP)}
    assert found == declared[installed.GROUP], "make setup installs it again"
    assert all(point.load() for point in entry_points(group=installed.GROUP))


def test_where_none_is_named_all_of_ours_and_all_rivals_run():
    assert [*compare(PAIR)] == ["accurate", "greedy", "jointdnn", "edge-only", "best-fixed"]
    assert [*compare(CHAIN)] == ["partition", "greedy", "even"]


def test_no_fixed_deployment_does_more_steps_than_the_best_of_them():
    found = compare(PAIR)
    assert all(found["best-fixed"].steps >= found[name].steps for name in ("accurate", "jointdnn", "edge-only"))


def test_the_choice_of_a_rival_is_kept():
    for name, planner in pair.PLANNERS.items():
        (run,) = compare(PAIR, (name,)).values()
        assert run.start == planner(*asked(PAIR.profile, AT_8_MBIT, SearchSpace())).layout
        assert not run.switches


def test_a_rival_that_has_nothing_to_choose_runs_only_where_it_is_named():
    unmeasured = Setting(small_profile(edge_seconds=(None, 1.0, 2.0, 3.0, None)), [LINK], SearchSpace(), 60.0)
    assert [*compare(unmeasured)] == ["accurate", "greedy", "jointdnn", "best-fixed"]
    with pytest.raises(PlanError, match="at cut 4"):
        compare(unmeasured, ("edge-only",))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (PAIR, 'no planner "luck"; there are accurate, greedy, jointdnn, edge-only, best-fixed$'),
        (CHAIN, 'no planner "luck" of a chain; there are partition, greedy, even$'),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_are_known(setting, said):
    with pytest.raises(PlanError, match=said):
        compare(setting, ("greedy", "luck"))


@pytest.mark.usefixtures("alone")
def test_without_the_benchmarks_our_own_run_and_a_rival_is_refused_with_the_place_where_it_is():
    assert [*compare(PAIR)] == ["accurate", "greedy"]
    assert [*compare(CHAIN)] == ["partition", "greedy"]
    with pytest.raises(
        PlanError, match=r"there are accurate, greedy; others come with the benchmarks .* not installed"
    ):
        compare(PAIR, ("jointdnn",))


def test_a_package_that_cannot_be_imported_is_refused(monkeypatch):
    broken = EntryPoint("pair", "nowhere.to:find", installed.GROUP)
    monkeypatch.setattr(installed, "entry_points", lambda **_: (broken,))
    with pytest.raises(PlanError, match=r"nowhere\.to:find is installed for comparison and cannot be imported"):
        compare(PAIR)
    assert compare(PAIR, ("greedy",)), "who asks for none of its planners does not import it"
