"""`python -m benchmarks.rivals.moving` as a user meets it: its output and its refusals."""

import json
import sys

import pytest

from benchmarks.rivals.moving import MOVE_POLICY_NAMES
from benchmarks.rivals.moving.__main__ import main
from edge_agent.planning import profile_to_json
from shared.errors import ExitCode
from tests.support.planning.cases import small_profile

SITES = "SITE_ID,LATITUDE,LONGITUDE,radius_m,cloud_factor\na,-37.815,144.960,400,1\nb,-37.815,144.966,400,0.7\n"
PATH = "second,latitude,longitude\n0,-37.815,144.960\n300,-37.815,144.966\n"


@pytest.fixture
def simulate(monkeypatch, capsys, tmp_path):
    """Return a function that simulates a move with some options, and returns its exit code and its output on both streams."""
    profile, sites, path = (tmp_path / name for name in ("profile.json", "sites.csv", "path.csv"))
    profile.write_text(profile_to_json(small_profile()))
    sites.write_text(SITES)
    path.write_text(PATH)

    def run(*options, rates=("--uplink", "20mbit", "--downlink", "50mbit"), **files):
        for name, text in files.items():
            (tmp_path / f"{name}.csv").write_text(text)
        given = ["--sites", sites, "--path", path, "--profile", profile, *rates, *options]
        monkeypatch.setattr(sys, "argv", ["moving", *map(str, given)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


def test_every_policy_prints_the_fields_that_are_promised(simulate):
    code, out, err = simulate("--json")
    assert (code, err) == (0, "")
    runs = {run["policy"]: run for run in json.loads(out)}
    assert tuple(runs) == MOVE_POLICY_NAMES
    for run in runs.values():
        assert set(run) == {"policy", "steps", "seconds_per_100_steps", "handovers", "spans", "probe_bytes"}
        assert run["seconds_per_100_steps"] == pytest.approx(100 * 300 / run["steps"])
    (change,) = runs["nearest"]["handovers"]
    assert set(change) == {"second", "from", "to", "bytes", "paused_seconds"}
    assert (change["from"], change["to"]) == ("a", "b")
    assert 150 <= change["second"] <= 151, "half the way"
    first, second = runs["nearest"]["spans"]
    assert set(first) == {"begin", "end", "trainer", "cut", "bits", "staleness", "steps"}
    assert (first["trainer"], first["begin"], first["end"]) == ("a", 0, change["second"])
    assert (second["trainer"], second["end"]) == ("b", 300)


def test_the_runs_in_words_are_a_table(simulate):
    code, out, _ = simulate("--policy", "best", "--policy", "lower-bound", "--relay", "--seed", 3)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["policy", "best", "lower-bound"]


def test_a_seed_gives_the_same_runs_again(simulate):
    assert simulate("--json", "--seed", 5) == simulate("--json", "--seed", 5)


@pytest.mark.parametrize(
    ("options", "files", "said"),
    [
        (("--policy", "luck"), {}, 'there is no policy "luck"'),
        (("--between", "fast"), {}, '--between is "fast"'),
        (("--cloud-round-trip", "135"), {}, '--cloud-round-trip is "135"'),
        ((), {"sites": "SITE_ID,LATITUDE\n1,2\n"}, "has no column LONGITUDE"),
        ((), {"sites": SITES.replace("-37.815", "nan")}, 'LATITUDE is "nan"'),
        ((), {"path": "second,latitude,longitude\n"}, "the path is empty"),
        ((), {"path": PATH.replace("300", "0")}, "the times of a path must rise"),
        ((), {"path": PATH.replace("-37", "37")}, "no site is in reach at the beginning of the path"),
    ],
)
def test_what_cannot_be_simulated_ends_with_one_sentence(simulate, options, files, said):
    code, out, err = simulate(*options, **files)
    assert (code, out, err.count("\n")) == (ExitCode.PLAN, "", 1)
    assert said in err


def test_rates_have_to_be_known(simulate):
    code, _, err = simulate(rates=())
    assert code == ExitCode.PLAN
    assert 'nothing is known of the uplink of "a"; give --uplink' in err
