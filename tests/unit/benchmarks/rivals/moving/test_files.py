"""Files of sites and paths: what they hold, and one sentence for everything else."""

import numpy as np
import pytest

from benchmarks.rivals.moving import Site, load_path, load_sites
from benchmarks.rivals.moving.paths import metres_between
from shared.errors import PlanError

SITES = "SITE_ID,LATITUDE,LONGITUDE"
PATH = "second,latitude,longitude"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_site_has_what_its_row_says(write):
    header = f"{SITES},NAME,radius_m,round_trip_ms,cloud_factor,uplink_mbit,downlink_mbit\n"
    (site,) = load_sites(write(f"{header}7,-37.8,144.9,corner,350,12,0.5,20,80\n"))
    assert site == Site("7", -37.8, 144.9, 350.0, 0.012, 0.5, 20e6, 80e6)


def test_the_seed_gives_a_site_its_radius_and_factor(write):
    path = write(f"{SITES}\n" + "".join(f"{i},-37.8,144.9\n" for i in range(200)))
    sites = load_sites(path, seed=3)
    assert sites == load_sites(path, seed=3) != load_sites(path, seed=4)
    radii = [site.radius_metres for site in sites]
    assert 300.0 <= min(radii) < 310.0
    assert 490.0 < max(radii) <= 500.0
    assert {site.cloud_factor for site in sites} == {1.0, 0.7}
    assert {(site.round_trip_seconds, site.uplink, site.downlink) for site in sites} == {(None, None, None)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SITE_ID,LATITUDE\n1,2\n", "has no column LONGITUDE"),
        ("", "has no column SITE_ID"),
        (f"{SITES}\n", "is empty; it needs a row"),
        (f"{SITES}\n1,nan,2\n", 'line 2: LATITUDE is "nan"; it must be a number from -90 to 90'),
        (f"{SITES}\n1,91,2\n", 'LATITUDE is "91"'),
        (f"{SITES}\n1,2\n", 'LONGITUDE is ""'),
        (f"{SITES}\n1,2,east\n", 'LONGITUDE is "east"'),
        (f"{SITES}\n1,2,3\n1,2,3\n", 'line 3: SITE_ID is "1"; each site needs a name of its own'),
        (f"{SITES}\n,2,3\n", "each site needs a name of its own"),
        (f"{SITES},radius_m\n1,2,3,0\n", 'radius_m is "0"; it must be a number from 1'),
        (f"{SITES},cloud_factor\n1,2,3,inf\n", 'cloud_factor is "inf"'),
        (f"{SITES},uplink_mbit\n1,2,3,0\n", 'uplink_mbit is "0"'),
        (b"\xff\xfe", "must be text in UTF-8"),
        (b"x" * (17 * 1024 * 1024), "takes more than 16777216 bytes"),
    ],
)
def test_sites_that_cannot_be_read_are_refused_with_one_sentence(write, text, said):
    with pytest.raises(PlanError) as refused:
        load_sites(write(text))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("second,latitude\n0,1\n", "has no column longitude"),
        (f"{PATH}\n", "is empty; it needs a row"),
        (f"{PATH}\n0,1,2\n", "the path takes 0 s; it must take from 1 s to a week"),
        (f"{PATH}\n0,1,2\n0.5,1,2\n", "the path takes 0.5 s"),
        (f"{PATH}\n0,1,2\n604801,1,2\n", "the path takes 604801 s"),
        (f"{PATH}\n0,1,2\n5,1,2\n5,1,2\n", "line 4: second is 5 after 5; the times of a path must rise"),
        (f"{PATH}\n0,1,2\nnan,1,2\n", 'second is "nan"'),
        (f"{PATH}\n0,1,2\n5,1,181\n", 'longitude is "181"'),
    ],
)
def test_paths_that_cannot_be_read_are_refused_with_one_sentence(write, text, said):
    with pytest.raises(PlanError) as refused:
        load_path(write(text))
    assert said in str(refused.value)


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        load_path(tmp_path / "absent.csv")


def test_between_two_rows_the_way_is_straight(write):
    path = load_path(write(f"{PATH}\n10,-37.0,144.0\n20,-38.0,145.0\n30,-38.0,145.5\n"))
    assert path.duration_seconds == 20
    latitudes, longitudes = path.at(np.array([0.0, 5.0, 15.0]))
    assert latitudes == pytest.approx([-37.0, -37.5, -38.0])
    assert longitudes == pytest.approx([144.0, 144.5, 145.25])


def test_distances_are_those_on_a_sphere_of_6371_km():
    north, east = np.array([0.0]), np.array([0.0])
    found = metres_between(north, east, np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 90.0, 180.0]))
    quarter = np.pi / 2 * 6_371_000.0
    assert found[0] == pytest.approx([0.0, quarter / 90.0, quarter, 2.0 * quarter])
