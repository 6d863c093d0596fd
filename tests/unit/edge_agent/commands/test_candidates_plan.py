"""`edge-agent plan --candidates` as a user meets it: its output and its refusals."""

import json

import pytest

from edge_agent.planning import Question, Rates, SearchSpace
from edge_agent.planning.candidates import Candidate, ranked_candidates
from shared.errors import ExitCode
from tests.support.planning.cases import small_profile

NEAR = {"name": "near", "uplink": 8e6, "downlink": 8e6, "round_trip_seconds": 0.01, "cloud_factor": 0.7}
FAR = {"name": "far", "uplink": 2e7, "downlink": 9e7, "round_trip_seconds": 0.135, "busy": 0.5, "sessions": 3}


@pytest.fixture
def candidates_path(tmp_path):
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps([NEAR, FAR]))
    return path


def test_the_ranking_is_printed_the_fastest_first(edge_agent, profile_path, candidates_path):
    code, out, err = edge_agent("plan", "--profile", profile_path, "--candidates", candidates_path, "--json")
    assert (code, err) == (0, "")
    candidates = [
        Candidate("near", Rates(8e6, 8e6, 0.01), 0.7),
        Candidate("far", Rates(2e7, 9e7, 0.135), busy=0.5, sessions=3),
    ]
    assert json.loads(out)["ranked"] == [
        {
            "name": one.layout.workers[-1],
            "cut": one.layout.tiles[0].stop,
            "bits": (*one.layout.bits, 32)[0],
            "staleness": one.layout.staleness,
            "seconds_per_step": one.seconds_per_step,
            "samples_per_second": pytest.approx(small_profile().batch_size / one.seconds_per_step),
        }
        for one in ranked_candidates(Question(small_profile()), candidates)
    ]


def test_the_ranking_in_words_is_a_table(edge_agent, profile_path, candidates_path):
    code, out, _ = edge_agent(
        "plan", "--profile", profile_path, "--candidates", candidates_path, "--no-edge-only", "--staleness", 1
    )
    assert code == 0
    expected = ranked_candidates(
        Question(small_profile(), SearchSpace(staleness=1, allow_edge_only=False)),
        [
            Candidate("near", Rates(8e6, 8e6, 0.01), 0.7),
            Candidate("far", Rates(2e7, 9e7, 0.135), busy=0.5, sessions=3),
        ],
    )
    assert [line.split()[0] for line in out.splitlines()] == [
        "samples/s",
        *(one.layout.workers[-1] for one in expected),
    ]


def test_bad_candidates_end_with_one_sentence(edge_agent, profile_path, tmp_path):
    path = tmp_path / "candidates.json"
    for text in ("[]", "{", json.dumps([{**NEAR, "name": "edge"}]), json.dumps([{**NEAR, "uplink": 0}])):
        path.write_text(text)
        code, out, err = edge_agent("plan", "--profile", profile_path, "--candidates", path)
        assert (code, out, err.count("\n")) == (ExitCode.PLAN, "", 1)
        assert "candidates.json" in err
