"""The profile file: what is written is read again, and what is wrong is refused with the key's name."""

import json

import pytest

from shared.errors import PlanError
from shared.planning.profile import Block, Encode, Profile, parse_profile, profile_to_json

PROFILE = Profile(
    model="m:f",
    batch_size=32,
    blocks=(Block("a", 100.0), Block("b", 0.0)),
    feature_bytes=(64.0, 128.0, 0.0),
    gradient_bytes=(0.0, 128.0, 0.0),
    edge_seconds=(None, 0.01, 0.02),
    cloud_seconds=(None, 0.001, 0.0),
    encode=Encode(1e-10, 1e-5),
    min_bits=None,
    max_staleness=5,
    extra={"decode": {"seconds": 1.0}},
)


def test_what_is_written_is_read_again():
    assert parse_profile(json.loads(profile_to_json(PROFILE)), "p.json") == PROFILE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "isthmus.profile/v9"),
        ("batch_size", 0),
        ("batch_size", None),
        ("edge_seconds", [None, -0.01, 0.02]),
        ("edge_seconds", [None, 0.01]),
        ("cloud_seconds", [None, "fast", 0.0]),
        ("max_staleness", -1),
        ("max_staleness", 1.5),
        ("blocks", []),
    ],
)
def test_what_is_wrong_is_refused_by_name(key, value):
    mapping = json.loads(profile_to_json(PROFILE)) | {key: value}
    with pytest.raises(PlanError, match=key.split("_")[0]) as refusal:
        parse_profile(mapping, "p.json")
    assert str(refusal.value).startswith("p.json")


def test_a_profile_in_which_nothing_was_measured_is_refused():
    mapping = json.loads(profile_to_json(PROFILE)) | {"edge_seconds": [None, None, None]}
    with pytest.raises(PlanError, match="nothing to choose from"):
        parse_profile(mapping, "p.json")
