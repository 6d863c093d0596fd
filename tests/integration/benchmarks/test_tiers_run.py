"""A placement of three tiers, trained by three processes on machines in a line."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks.net import Measure, meshed_namespaces
from benchmarks.net.namespaces import missing
from benchmarks.net.slow_device import missing as slowing_missing
from benchmarks.tiers.settings import profile_document
from shared.placement import Placement, Rows, Source, Tile, document_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(missing() is not None, reason=f"a shaped link {missing()}"),
]
WHOLE, PART = Rows(0, 32), Rows(0, 12)


def test_machines_in_a_line_reach_each_other_through_those_between():
    with meshed_namespaces("test", ["a", "b", "c"], {("a", "b"): 0.02, ("b", "c"): 0.04}, in_a_line=True) as mesh:
        assert set(mesh.ends) == {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
        mesh.shape(4e6)
        a, _, c = mesh.machines.values()
        passing = mesh.ends["b", "c"]
        before = passing.sent_bytes()
        measure = Measure(SimpleNamespace(edge=a, cloud=c))
        assert measure.round_trip() >= 0.06
        assert measure.uplink(1.0) < 4e6
        assert passing.sent_bytes() > before


def test_the_round_trip_of_a_cable_may_change():
    with meshed_namespaces("test", ["a", "b"], {("a", "b"): 0.02}) as mesh:
        measure = Measure(SimpleNamespace(edge=mesh.machines["a"], cloud=mesh.machines["b"]))
        mesh.delay(0.3, ("a", "b"))
        assert measure.round_trip() >= 0.3
        mesh.delay(0.01, ("a", "b"))
        assert 0.01 <= measure.round_trip() < 0.3


def test_a_placement_is_measured_beside_what_is_predicted(tmp_path):
    """The far trainer gets samples of its own, so the device reaches it through the near one."""
    placement = Placement(
        version=0,
        blocks=3,
        batch_size=32,
        workers=("edge", "near", "gpu"),
        tiles=(
            Tile("near", 0, 2, Rows(12, 32)),
            Tile("gpu", 0, 2, PART),
            Tile("near", 2, 3, WHOLE),
        ),
        sources=(Source("edge", WHOLE),),
        owners={0: "near", 1: "near"},
    )
    profile, placements = tmp_path / "tiers.json", tmp_path / "placements.jsonl"
    profile.write_text(
        json.dumps(profile_document((0.002, 0.001, 0.001), 40.0, 10.0, (64, 64, 64, 40), (400, 400, 400)))
    )
    placements.write_text(json.dumps(document_of(placement)) + "\n")
    command = [sys.executable, "-m", "benchmarks.tiers", "run", "--json", "--seconds=2"]
    done = subprocess.run(
        [*command, f"--profile={profile}", f"--placements={placements}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["placement"] == document_of(placement)
    lower, upper = found["quartiles"]
    assert lower <= found["seconds_per_step"] <= upper
    asleep = 3 * (3 * 0.001 + (2 * 20 + 32) * 0.001)
    assert found["seconds_per_step"] >= 0.99 * asleep, "the near trainer sleeps so long"
    assert found["error"] == pytest.approx(found["predicted_seconds"] / found["seconds_per_step"] - 1)
    assert found["eq12_seconds"] > 0


@pytest.mark.full
@pytest.mark.skipif(slowing_missing() is not None, reason=f"a slow device {slowing_missing()}")
def test_workers_on_shares_of_a_core_are_measured_planned_for_and_trained(tmp_path):
    kept = tmp_path / "kept.jsonl"
    command = [sys.executable, "-m", "benchmarks.tiers", "shares", "slow", "--seconds=1", f"--keep={kept}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in kept.read_text().splitlines()]
    assert found[0]["name"] == "best"
    for row in found:
        assert row["setting"] == "slow"
        assert row["seconds_per_step"] > 0.05, "the blocks compute"
        assert row["predicted_seconds"] > 0.05, "the profile has what they take"
    assert "blocks compute" in done.stdout
