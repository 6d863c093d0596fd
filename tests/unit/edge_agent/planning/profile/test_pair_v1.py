"""Files of pairs: a valid one is kept to the last digit, an invalid one is refused in a sentence with file and key."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import MeasuredLink, MessageSeconds, load_profile, parse_profile, profile_to_json
from shared.errors import PlanError
from tests.support.planning.cases import PAIR_FILE, measured, small_profile


def written(**changes) -> dict:
    fields = {key: list(value) if isinstance(value, list) else value for key, value in PAIR_FILE.items()}
    return fields | changes


def test_a_file_is_read_as_it_stands():
    assert profile_to_json(parse_profile(written(), "file")) == profile_to_json(small_profile())
    more = {
        "serial_edge_seconds": [None, 0.5, None, 1.5, 4.0],
        "overhead": {"seconds_per_byte": 1e-9, "seconds": 0.25},
        "serial_overhead_seconds": 0.125,
        "round_trip_seconds": 0.04,
    }
    profile = parse_profile(written(**more), "file")
    edge, trainer = profile.workers
    assert profile.names == ("edge", "trainer")
    assert [measured(profile, cut, serial=True)[0] for cut in range(1, 5)] == [0.5, 2.0, 1.5, 4.0]
    assert edge.message == MessageSeconds(0.25, 1e-9, 0.125)
    assert trainer.message == MessageSeconds()
    assert profile.link("edge", "trainer") == MeasuredLink(None, None, 0.04)
    assert profile.round_trip_seconds("trainer", "edge") == 0.04
    assert np.isfinite(trainer.replayed).sum() == 3, "of a trainer only what ends the model was measured"


def test_a_file_from_before_codec_families_were_written_is_of_uniform_ones():
    fields = written(codec_family="signs")
    assert parse_profile(fields, "file").codec_family == "signs"
    del fields["codec_family"]
    assert parse_profile(fields, "file").codec_family == "uniform"
    with pytest.raises(PlanError, match="file: codec_family is 8; it must be a string"):
        parse_profile(written(codec_family=8), "file")


def test_fields_beyond_the_schema_are_kept():
    profile = parse_profile(written(device="Pi 4", spread=[1, 2]), "file")
    assert profile.extra == {"device": "Pi 4", "spread": [1, 2]}


@pytest.mark.parametrize("key", [key for key in written() if key not in ("schema", "codec_family")])
def test_a_missing_field_is_named(key):
    fields = written()
    del fields[key]
    with pytest.raises(PlanError, match=rf"^some/file: {key} is missing"):
        parse_profile(fields, "some/file")


@pytest.mark.parametrize("schema", [None, "isthmus.profile/v3", 1, []])
def test_another_schema_is_refused(schema):
    with pytest.raises(PlanError, match="this version reads"):
        parse_profile(written(schema=schema), "file")


BAD_NUMBERS = [-1, -0.001, math.nan, math.inf, -math.inf, True, "3", [], 10**400]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=str)
@pytest.mark.parametrize("key", ["feature_bytes", "gradient_bytes", "edge_seconds", "cloud_seconds"])
def test_a_bad_entry_is_named_with_its_cut(key, bad):
    fields = written()
    fields[key][2] = bad
    with pytest.raises(PlanError, match=rf"^file: {key}\[2\] is .*; it must be a finite number of 0 or more, or null"):
        parse_profile(fields, "file")


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=str)
def test_a_bad_number_of_a_field_that_may_be_left_out_is_named_too(bad):
    with pytest.raises(
        PlanError, match=r"^file: serial_overhead_seconds is .*; it must be a finite number of 0 or more"
    ):
        parse_profile(written(serial_overhead_seconds=bad), "file")
    with pytest.raises(PlanError, match=r"^file: overhead\.seconds is .*; it must be a finite number of 0 or more"):
        parse_profile(written(overhead={"seconds_per_byte": 0.0, "seconds": bad}), "file")
    with pytest.raises(PlanError, match=r"^file: serial_edge_seconds\[1\] is .*; it must be a finite number"):
        parse_profile(written(serial_edge_seconds=[None, bad, None, None, None]), "file")


@pytest.mark.parametrize("length", [0, 4, 6])
@pytest.mark.parametrize(
    "key", ["feature_bytes", "gradient_bytes", "edge_seconds", "cloud_seconds", "min_bits", "serial_edge_seconds"]
)
def test_a_list_of_another_length_is_refused(key, length):
    with pytest.raises(PlanError, match=rf"^file: {key} has {length} entries; with 4 blocks it must have 5"):
        parse_profile(written(**{key: [8] * length}), "file")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 3),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("batch_size", True),
        ("max_staleness", -1),
        ("max_staleness", None),
        ("max_staleness", 1.5),
        ("blocks", []),
        ("blocks", "b0"),
        ("edge_seconds", {"0": 1}),
        ("encode", 0.1),
        ("encode", {"seconds": 1.0}),
        ("overhead", 0.1),
        ("overhead", {"seconds": 1.0}),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(key, value):
    with pytest.raises(PlanError, match=rf"^file: {key} is .*; it must be"):
        parse_profile(written(**{key: value}), "file")


@pytest.mark.parametrize("bad", [0, 33, "8", 1.5, True, [8]], ids=str)
def test_an_impossible_width_is_refused(bad):
    with pytest.raises(PlanError, match=r"^file: min_bits\[1\] is .*; it must be an integer of 1 to 32"):
        parse_profile(written(min_bits=[None, bad, 8, 8, None]), "file")


@pytest.mark.parametrize(
    "block", [None, {"name": "b"}, {"bytes": 1}, {"name": 1, "bytes": 1}, {"name": "b", "bytes": None}]
)
def test_a_bad_block_is_named(block):
    fields = written()
    fields["blocks"][3] = block
    with pytest.raises(PlanError, match=r"^file: blocks\[3\]"):
        parse_profile(fields, "file")


@pytest.mark.parametrize("bad", [-1.0, math.nan, None])
def test_a_bad_encode_cost_is_named(bad):
    with pytest.raises(PlanError, match=r"^file: encode.seconds_per_byte"):
        parse_profile(written(encode={"seconds_per_byte": bad, "seconds": 0.0}), "file")


@pytest.mark.parametrize("key", ["edge_seconds", "cloud_seconds", "feature_bytes", "gradient_bytes"])
def test_a_profile_with_nothing_to_choose_from_is_refused(key):
    nothing = written(
        **{key: [1.0, None, None, None, None], "edge_seconds": [1.0, 1.0, 1.0, 1.0, None]} | {key: [1.0] + [None] * 4}
    )
    with pytest.raises(PlanError, match="no cut from 1 to 4 has all of"):
        parse_profile(nothing, "file")


def test_edge_only_alone_is_enough_to_plan_with():
    profile = parse_profile(written(edge_seconds=[None, None, None, None, 5.0]), "file")
    assert measured(profile, 4)[0] == 5.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"schema": NaN', "[" * 100_000, "\x00"], ids=lambda text: text[:10]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"profile\.json: "):
        load_profile(path)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "absent", "."):
        with pytest.raises(PlanError, match=str(tmp_path)):
            load_profile(tmp_path / name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(written())), json_values)
def test_whatever_stands_in_a_field_is_a_profile_or_one_sentence(key, value):
    said = ""
    try:
        parse_profile(written(**{key: value}), "file")
    except PlanError as error:
        said = str(error)
    assert said == "" or (said.startswith("file: ") and "\n" not in said)


def test_error_gradients_of_fewer_bits_are_so_much_smaller_and_nothing_else_is():
    profile = small_profile(gradient_bytes=(None, 4e6, None, 1e6, None))
    halved = profile.with_gradient_bits(16)
    assert halved.gradient_bytes == (None, 2e6, None, 5e5, None)
    assert halved.feature_bytes == profile.feature_bytes
