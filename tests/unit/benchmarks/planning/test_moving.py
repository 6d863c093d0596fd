"""Moving among trainers, by short runs of its benchmark."""

import random

import numpy as np
import pytest

from benchmarks.planning.moving import RIVALS, journey, world_of
from benchmarks.planning.moving_calm import calm
from benchmarks.planning.moving_foresight import most_steps
from benchmarks.planning.moving_paper import TABLE_1, fitted, report_paper
from benchmarks.planning.moving_paths import random_path
from benchmarks.planning.paper_profiles import vgg19_profile
from benchmarks.rivals.moving import Site, load_sites, simulate_moves
from benchmarks.rivals.moving.paths import metres_between

SITES = [Site("a", -37.80, 144.95, 400.0), Site("b", -37.82, 144.97, 400.0)]


@pytest.mark.parametrize("speed", [1.4, 20.0])
def test_a_random_path_keeps_its_pace_within_the_rectangle_of_the_sites(speed):
    path = random_path(random.Random(1), SITES, speed, 1800.0)
    assert path.duration_seconds == 1800
    latitudes, longitudes = path.at(np.arange(0.0, 1800.0, 1.0))
    assert -37.82 <= latitudes.min() <= latitudes.max() <= -37.80
    assert 144.95 <= longitudes.min() <= longitudes.max() <= 144.97
    metres = np.array(
        [
            metres_between(*(np.array([each]) for each in place))[0, 0]
            for place in zip(path.latitudes, path.longitudes, path.latitudes[1:], path.longitudes[1:], strict=False)
        ]
    )
    assert metres / np.diff(path.seconds) == pytest.approx(speed, rel=1e-2)


@pytest.mark.parametrize("seed", [4, 74])
def test_on_rates_that_swap_the_choice_stays_near_the_better_kept_trainer(seed):
    assert calm(seed).behind <= 1.05


@pytest.mark.parametrize("speed", [10.0, 20.0])
def test_one_that_knows_the_path_is_behind_the_bound_and_ahead_of_every_policy(shared_data, speed):
    (sites,) = (load_sites(path) for path in (shared_data / "edge_servers").glob("*.csv"))
    world = world_of(vgg19_profile(shared_data / "device_profiles", "TX2"), sites[:12], 3, speed, 240.0)
    steps = {run.policy: run.steps for run in simulate_moves(world)}
    most = most_steps(world)
    assert most <= steps.pop("lower-bound")
    assert max(steps.values()) <= 1.001 * most


@pytest.mark.slow
@pytest.mark.parametrize("device", ["TX2", "Pi"])
@pytest.mark.parametrize("speed", [1.4, 20.0])
def test_on_paths_among_the_sites_of_a_city_no_policy_beats_the_choice(shared_data, device, speed):
    (sites,) = (load_sites(path) for path in (shared_data / "edge_servers").glob("*.csv"))
    found = journey(0, device, speed, vgg19_profile(shared_data / "device_profiles", device), sites, 900.0)
    assert found.behind("lower-bound") <= 1.25
    assert {name: found.behind(name) for name in RIVALS if found.behind(name) > 1.03} == {}


@pytest.mark.slow
def test_the_ratios_of_the_paper_come_out_of_its_profiles(shared_data):
    shape = vgg19_profile(shared_data / "device_profiles", "TX2")
    (sites,) = (load_sites(path) for path in (shared_data / "edge_servers").glob("*.csv"))
    for row, found in zip(TABLE_1, report_paper(shape, sites, 1, 3600.0), strict=True):
        assert fitted(shape, row).alone() is not None
        assert found.ratios["device-cloud"][0] == pytest.approx(row.cloud_ratio, rel=0.01)
        assert found.ratios["edgemove"][0] == pytest.approx(row.edgemove_ratio, rel=0.15)
        assert found.ratios["best"][0] >= 2.4
        assert found.ratios["best"][0] >= found.ratios["edgemove"][0]
