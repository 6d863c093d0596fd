"""The file of candidates: what it may hold, and one sentence for everything else."""

import json

import pytest

from edge_agent.planning import Rates
from edge_agent.planning.candidates import Candidate, load_candidates, parse_candidates
from shared.errors import PlanError

GOOD = {"name": "a", "uplink": 1e7, "downlink": 5e7}


def test_a_candidate_is_read_with_what_is_known_of_it():
    whole = {**GOOD, "name": "b", "round_trip_seconds": 0.02, "cloud_factor": 0.7, "busy": 0.25, "sessions": 2}
    assert parse_candidates([GOOD, whole], "C.json") == [
        Candidate("a", Rates(1e7, 5e7)),
        Candidate("b", Rates(1e7, 5e7, 0.02), 0.7, 0.25, 2),
    ]


@pytest.mark.parametrize(
    ("decoded", "said"),
    [
        ({}, "must be a list of 1 to 1000 objects"),
        ([], "must be a list of 1 to 1000 objects"),
        ([GOOD, 3], "candidate 2 must be an object"),
        ([{"name": "a", "uplink": 1.0}], "candidate 1 has no downlink"),
        ([{**GOOD, "rtt": 1.0}], 'candidate 1 has "rtt"; it may have name'),
        ([{**GOOD, "uplink": 0}], "candidate 1: the uplink rate is 0.0 bit/s; it must be above 0"),
        ([{**GOOD, "uplink": "10mbit"}], "candidate 1: uplink must be a finite number"),
        ([{**GOOD, "downlink": float("nan")}], "candidate 1: downlink must be a finite number"),
        ([{**GOOD, "downlink": 10**400}], "candidate 1: downlink must be a finite number"),
        ([{**GOOD, "round_trip_seconds": -1}], "candidate 1: round_trip_seconds must be a finite number of 0 or more"),
        ([{**GOOD, "busy": 1.5}], "busy is 1.5; it must be from 0 to 1"),
        ([{**GOOD, "cloud_factor": 0}], "cloud_factor is 0; it must be above 0"),
        ([{**GOOD, "sessions": 1.5}], "sessions must be a whole number"),
        ([{**GOOD, "sessions": True}], "sessions must be a whole number"),
        ([{**GOOD, "name": ""}], "name must be a text of 1 to 100 characters"),
        ([GOOD, GOOD], 'candidate 2 is named "a"; each needs a name of its own'),
        ([{**GOOD, "name": "edge"}], 'candidate 1 is named "edge"; each needs a name of its own'),
    ],
)
def test_anything_else_is_refused_with_one_sentence(decoded, said):
    with pytest.raises(PlanError, match=r"^C\.json: ") as refused:
        parse_candidates(decoded, "C.json", taken=["edge"])
    assert said in str(refused.value)


def test_a_file_that_is_no_json_or_too_long_or_absent_is_refused(tmp_path):
    path = tmp_path / "C.json"
    for raw, said in (
        (b"{", "are not JSON"),
        (b"\xff\xfe", "are not JSON"),
        (b"[" * 100_000, "are not JSON"),
        (b" " * 2**21, "more than 1048576 bytes"),
    ):
        path.write_bytes(raw)
        with pytest.raises(PlanError, match=said):
            load_candidates(path)
    with pytest.raises(PlanError, match="cannot be read"):
        load_candidates(tmp_path / "absent.json")
    path.write_text(json.dumps([GOOD]))
    assert [each.name for each in load_candidates(path)] == ["a"]
