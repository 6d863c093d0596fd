"""Training on a simulated path: reach, pauses, and what no policy may do."""

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.rivals.moving import CLOUD, MOVE_POLICY_NAMES, Backbone, Path, Site, World, simulate_moves, world
from benchmarks.rivals.moving.moves import LOWER_BOUND, MAKERS
from edge_agent.planning import Question, SearchSpace, loads_of
from edge_agent.planning.candidates import Candidate, ranked_candidates
from edge_agent.planning.families.pair import best_pairs
from edge_agent.planning.rates import Rates
from shared.errors import PlanError
from tests.support.planning.cases import small_profile

METRES_OF_DEGREE = math.pi * 6_371_000.0 / 180.0
FAST, SLOW = 1e9, 8e6
NETWORK = Backbone(FAST, FAST)
LIGHT = small_profile(edge_seconds=(None, 0.05, 0.1, 0.15, 0.2), cloud_seconds=(None, 0.1, 0.06, 0.03, 0.0))


def site(name, metres, radius=400.0, **changes):
    """Return a site so far from the beginning of the path."""
    return Site(name, metres / METRES_OF_DEGREE, 0.0, radius, **changes)


def walk(metres, seconds, begin=0.0):
    """Return a straight path away from there."""
    return Path(np.array([0.0, seconds]), np.array([begin, metres]) / METRES_OF_DEGREE, np.zeros(2))


def world_of(sites, path, network=NETWORK, profile=LIGHT, **space):
    return World(best_pairs(Question(profile, SearchSpace(**space))), sites, path, network)


def runs_of(a_world, *policies):
    return {run.policy: run for run in simulate_moves(a_world, policies)}


ROW = [site("a", 0.0), site("b", 500.0, cloud_factor=0.7), site("c", 1000.0)]


def test_a_trainer_is_in_reach_within_its_radius_and_its_round_trip_grows_to_there():
    (window,) = world_of([site("a", 0.0)], walk(800.0, 8.0)).windows()
    assert window.in_reach[:, 1].tolist() == [True] * 5 + [False] * 3
    assert window.trips[:5, 1] == pytest.approx([0.005, 0.01375, 0.0225, 0.03125, 0.04])
    assert window.in_reach[:, 2].all(), "the cloud is in reach everywhere"
    assert window.trips[:, 2] == pytest.approx(0.135)
    assert np.isinf(window.best_seconds[5:, 1]).all()


def test_a_second_has_the_layouts_of_the_ranking():
    a_world = world_of(ROW, walk(0.0, 1.0, begin=450.0), Backbone(SLOW, 2 * SLOW))
    (window,) = a_world.windows()
    trips = window.trips[0]
    candidates = [
        Candidate("b", Rates(SLOW, 2 * SLOW, float(trips[2])), 0.7),
        Candidate(CLOUD, Rates(SLOW, 2 * SLOW, float(trips[-1]))),
    ]
    expected = {one.layout.workers[-1]: one.seconds_per_step for one in ranked_candidates(Question(LIGHT), candidates)}
    found = dict(zip(a_world.names, window.best_seconds[0].tolist(), strict=True))
    assert {name: seconds for name, seconds in found.items() if seconds < math.inf} == pytest.approx(expected)


def test_windows_do_not_change_what_is_done(monkeypatch):
    def results():
        return simulate_moves(world_of(ROW, walk(1000.0, 500.0)))

    whole = results()
    monkeypatch.setattr(world, "WINDOW_SECONDS", 7)
    monkeypatch.setattr(world, "MOST_ENTRIES", 100)
    for run, same in zip(results(), whole, strict=True):
        assert dataclasses.replace(run, steps=0.0) == dataclasses.replace(same, steps=0.0)
        assert run.steps == pytest.approx(same.steps)


def test_a_kept_trainer_does_a_step_in_the_seconds_of_the_cost_model():
    a_world = world_of([site("a", 0.0)], walk(0.0, 100.0))
    found = runs_of(a_world, "device-cloud", "edge-only")
    cloud = next(one for one in ranked_candidates(Question(LIGHT), [Candidate(CLOUD, Rates(FAST, FAST, 0.135))])
                 if one.layout.workers[-1] == CLOUD)  # fmt: skip
    assert found["device-cloud"].steps == pytest.approx(100.0 / cloud.seconds_per_step)
    assert found["edge-only"].steps == pytest.approx(100.0 / 0.2)
    assert not found["device-cloud"].handovers


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("seconds", [1000.0, 60.0])
def test_no_policy_exceeds_the_bound_and_spans_and_handovers_are_a_whole(relay, seconds):
    network = dataclasses.replace(NETWORK, relay=relay, uplink=SLOW)
    a_world = world_of(ROW, walk(1000.0, seconds), network)
    found = runs_of(a_world)
    assert tuple(found) == MOVE_POLICY_NAMES == (*MAKERS, LOWER_BOUND)
    for name, run in found.items():
        assert 0.0 < run.steps <= found["lower-bound"].steps * (1 + 1e-9), name
        if name == LOWER_BOUND:
            continue
        assert sum(span.steps for span in run.spans) == pytest.approx(run.steps)
        assert run.spans[0].begin == 0
        assert run.spans[-1].end == seconds
        assert all(before.end == after.begin for before, after in zip(run.spans, run.spans[1:], strict=False))
        changes = [
            (after.begin, before.trainer, after.trainer)
            for before, after in zip(run.spans, run.spans[1:], strict=False)
            if before.trainer != after.trainer
        ]
        assert [(each.second, each.origin, each.target) for each in run.handovers] == changes
        assert all(each.paused_seconds > 0.0 for each in run.handovers)


def test_sticky_stays_until_its_trainer_is_out_of_reach_and_nearest_does_not():
    a_world = world_of(ROW, walk(1000.0, 1000.0), profile=small_profile(), allow_edge_only=False)
    found = runs_of(a_world, "sticky", "nearest")
    assert [each.second for each in found["nearest"].handovers] == [251, 751]
    sticky = found["sticky"]
    assert [(each.target, each.second) for each in sticky.handovers] == [("b", 401), ("c", 901)]


def test_a_handover_moves_the_trainers_blocks_between_trainers_and_pauses_for_them():
    """The blocks behind the cut go from one trainer to the other at the rate between them, and four round trips pass."""
    network = Backbone(FAST, FAST, between=SLOW)
    a_world = world_of(ROW, walk(1000.0, 1000.0), network, allow_edge_only=False, staleness=0)
    first = runs_of(a_world, "nearest")["nearest"].handovers[0]
    span = next(span for span in runs_of(a_world, "nearest")["nearest"].spans if span.trainer == "b")
    held = a_world.pairs.profile.bytes_before
    assert first.moved_bytes == held[-1] - held[span.cut]
    layout = a_world.pairs.layout(int(np.flatnonzero(a_world.pairs.cuts == span.cut)[0]))
    assert loads_of(LIGHT, [layout]).sends().all()
    assert first.paused_seconds > 8 * first.moved_bytes / SLOW
    assert first.paused_seconds < 8 * first.moved_bytes / SLOW + 4 * 0.04 + 0.5


def test_a_trainer_out_of_reach_goes_on_through_another_one_with_a_relay():
    alone = world_of(ROW[:2], walk(900.0, 900.0), allow_edge_only=False)
    relayed = world_of(ROW[:2], walk(900.0, 900.0), Backbone(FAST, FAST, relay=True), allow_edge_only=False)
    (without,), (through,) = (simulate_moves(each, ["sticky"]) for each in (alone, relayed))
    assert [each.second for each in without.handovers] == [401]
    assert not through.handovers
    (window, *_) = relayed.windows()
    assert window.index[500, 1] >= 0
    assert not window.in_reach[500, 1]
    assert window.trips[500, 1] == window.trips[500, 2]


def test_without_a_site_in_reach_a_policy_of_sites_trains_on_the_device_alone_until_one_comes():
    sites = [site("a", 0.0), site("b", 1200.0)]
    found = runs_of(world_of(sites, walk(1200.0, 1200.0)), "sticky", "nearest", "edgemove", "pipedream-e")
    for run in found.values():
        assert [span.trainer for span in run.spans if span.begin <= 600 < span.end] == ["edge"], run.policy
        assert run.spans[-1].trainer == "b", run.policy


def test_probes_are_counted():
    found = runs_of(world_of([site("a", 0.0)], walk(0.0, 100.0)), "best", "device-cloud")
    assert found["best"].probe_bytes == 10 * 2 * 512 + 2 * 128 * 1024
    assert found["device-cloud"].probe_bytes == 0


@pytest.mark.parametrize(
    ("sites", "network", "said"),
    [
        (
            [site("a", 900.0)],
            NETWORK,
            "no site is in reach at the beginning of the path; a is 900 m away and reaches 400 m",
        ),
        ([site("cloud", 0.0)], NETWORK, 'a site is named "cloud"'),
        ([site("edge", 0.0)], NETWORK, 'a site is named "edge"'),
        ([site("a", 0.0)], Backbone(None, FAST), 'nothing is known of the uplink of "a"; give --uplink'),
        (
            [site("a", 0.0, uplink=1e6, downlink=1e6)],
            Backbone(FAST, None),
            'of the downlink of "cloud"; give --downlink',
        ),
    ],
)
def test_a_world_that_cannot_be_simulated_is_refused_with_one_sentence(sites, network, said):
    with pytest.raises(PlanError) as refused:
        world_of(sites, walk(0.0, 10.0), network)
    assert said in str(refused.value)


def test_an_unknown_policy_is_refused_and_one_that_needs_the_device_alone():
    a_world = world_of(ROW, walk(0.0, 10.0), allow_edge_only=False)
    with pytest.raises(PlanError, match='there is no policy "luck"; there are best, sticky'):
        simulate_moves(a_world, ["luck"])
    with pytest.raises(PlanError, match="edge-only needs the device alone"):
        simulate_moves(a_world, ["edge-only"])
    assert "edge-only" not in runs_of(a_world)
