"""Files of profiles: a written one is read back, and each error has one sentence."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import MeasuredLink, parse_profile, profile_to_json
from shared.errors import ExitCode, PlanError
from tests.support.planning.cases import profiles, small_profile
from tests.support.planning.chains import chain_document

CHAIN = parse_profile(chain_document(4, 3, seed=3), "chain")
GOOD = json.loads(profile_to_json(CHAIN))


@given(profiles())
def test_the_profile_of_a_pair_survives_its_file(profile):
    text = profile_to_json(profile)
    assert profile_to_json(parse_profile(json.loads(text), "file")) == text


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_that_of_a_chain_does_too(blocks, stages, seed):
    text = profile_to_json(parse_profile(chain_document(blocks, min(blocks, stages), seed), "chain"))
    assert profile_to_json(parse_profile(json.loads(text), "file")) == text


def test_fields_beyond_the_schema_are_kept():
    profile = parse_profile(GOOD | {"device": "Pi 4", "spread": [1, 2]}, "file")
    assert profile.extra == {"device": "Pi 4", "spread": [1, 2]}
    assert json.loads(profile_to_json(profile)) == GOOD | {"device": "Pi 4", "spread": [1, 2]}


def test_a_link_has_two_ends_and_a_direction():
    link = CHAIN.link("s0", "s1")
    assert link is not None
    assert CHAIN.link("s1", "s0") == MeasuredLink(link.downlink, link.uplink, link.round_trip_seconds)
    assert CHAIN.link("s0", "s2") is None
    with pytest.raises(PlanError, match="nothing is known of the rates of a link from 's0' to 's2'"):
        CHAIN.rates("s0", "s2")
    turned = CHAIN.with_links({("s1", "s0"): MeasuredLink(1.0, 2.0, 0.5)})
    assert turned.link("s0", "s1") == MeasuredLink(2.0, 1.0, 0.5)


def changed(path: str, value: object) -> dict:
    """Return the good file with another value at a path, as workers.0.name; `...` leaves the key out."""
    document = copy.deepcopy(GOOD)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place = document
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("model", ..., "model is missing; a profile of schema isthmus.profile/v2 has it"),
        (
            "blocks.1.parameter_bytes",
            -1,
            "blocks[1].parameter_bytes is -1; it must be a finite number of 0 or more, or null",
        ),
        ("workers", {}, "workers is {}; it must be a list of one worker or more"),
        ("workers.1.name", 7, 'it must be an object with "name"'),
        ("workers.1.name", "s0", "two stages are called 's0'"),
        ("workers.2.replayed", [], "workers[2].replayed has 0 entries; with 4 blocks it must have 5"),
        ("workers.2.replayed.0.3", -1, "workers[2].replayed[0][3] is -1; it must be a finite number of 0 or more"),
        ("workers.2.serial", 3, "workers[2].serial is 3; it must be a list of 5 entries"),
        ("workers.0.message", [], "workers[0].message is []; it must be an object with seconds, seconds_per_byte"),
        ("workers.0.message.waited_seconds", math.inf, "workers[0].message.waited_seconds is Infinity"),
        ("links", 1, "links is 1; it must be a list of links"),
        ("links.0.between", ["s0", "s0"], 'it must be an object with "between", the names of two workers'),
        ("links.0.between", ["s0", "far"], 'it must be an object with "between", the names of two workers'),
        ("links.1.between", ["s1", "s0"], "there are two links between 's1' and 's0'; leave one out"),
        ("links.0.uplink", 0, "links[0].uplink is 0; it must be a rate above 0 in bit/s, or null"),
        ("links.0.downlink", "1mbit", 'links[0].downlink is "1mbit"; it must be a finite number'),
        (
            "links.0.round_trip_seconds",
            -1,
            "links[0].round_trip_seconds is -1; it must be a finite number of 0 or more",
        ),
        ("max_staleness", -1, "max_staleness is -1; it must be a whole number of 0 or more"),
        ("codec_family", None, "codec_family is null; it must be a string"),
        ("min_bits", [None, 40, None, None, None], "min_bits[1] is 40; it must be an integer of 1 to 32"),
    ],
)
def test_each_error_gets_one_sentence(path, value, sentence):
    with pytest.raises(PlanError) as refused:
        parse_profile(changed(path, value), "p.json")
    text = str(refused.value)
    assert text.startswith("p.json: ")
    assert sentence in text
    assert "\n" not in text
    assert refused.value.exit_code is ExitCode.PLAN


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(GOOD)), json_values)
def test_whatever_stands_in_a_field_is_a_profile_or_one_sentence(key, value):
    said = ""
    try:
        parse_profile(GOOD | {key: value}, "file")
    except PlanError as error:
        said = str(error)
    assert said == "" or (said.startswith("file: ") and "\n" not in said)


def test_error_gradients_of_fewer_bits_are_so_much_smaller_and_nothing_else_is():
    profile = small_profile(gradient_bytes=(None, 4e6, None, 1e6, None))
    halved = profile.with_gradient_bits(16)
    assert halved.gradient_bytes == (None, 2e6, None, 5e5, None)
    assert profile_to_json(halved.with_gradient_bits(64)) == profile_to_json(profile)
