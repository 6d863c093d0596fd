"""Files of profiles: what may be in one, and one sentence for each error."""

import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import load_profile, parse_profile
from shared.errors import ExitCode, PlanError
from tests.support.planning.cases import PAIR_FILE
from tests.support.planning.chains import chain_document
from tests.support.planning.tiers import tiers_document

FILES = {
    "pair": PAIR_FILE | {"min_bits": [None, 8, 8, 8, None], "remarks": {"device": "Pi 4"}},
    "chain": chain_document(3, 2, seed=3) | {"min_bits": None},
    "tiers": tiers_document(3, 8, seed=1, codecs=True) | {"shared_segments": []},
}


def changed(file: str, path: str, value: object) -> dict:
    """Return a good file with another value at a path, as workers.0.name; `...` leaves the key out."""
    document = copy.deepcopy(FILES[file])
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
    ("file", "path", "value", "sentence"),
    [
        ("pair", "model", ..., "model is missing"),
        ("pair", "model", 3, "model is 3; it must be a valid string"),
        ("pair", "batch_size", ..., "batch_size is missing"),
        ("pair", "batch_size", 0, "batch_size is 0; it must be greater than or equal to 1"),
        ("pair", "batch_size", 2.5, "batch_size is 2.5"),
        ("pair", "batch_size", True, "batch_size is true; it must be a valid integer"),
        ("pair", "blocks", ..., "blocks is missing"),
        ("pair", "blocks", [], "blocks is missing"),
        ("pair", "blocks", "b0", 'blocks is "b0"'),
        ("pair", "blocks", [{"name": "b", "bytes": 1}] * 4097, "blocks is [{"),
        ("pair", "blocks.3", None, "blocks[3] is null; it must be an object"),
        ("pair", "blocks.3", {"name": "b"}, "blocks[3].bytes is missing"),
        ("pair", "blocks.3.name", 1, "blocks[3].name is 1; it must be a valid string"),
        ("pair", "blocks.3.bytes", 2**41, "blocks[3].bytes is 2199023255552; it must be less than or equal to"),
        ("pair", "blocks.3.size", 1, "there is no key blocks[3].size"),
        ("pair", "blocks.2.whole", 1, "blocks[2].whole is 1; it must be a valid boolean"),
        ("pair", "cut", 3, "there is no key cut"),
        ("pair", "remarks", {"spread": [math.nan]}, 'remarks is {"spread": [NaN]}; out of range'),
        ("pair", "a\nb", 3, r"there is no key a\nb"),
        ("tiers", "codecs.a\nb", 3, r"codecs.a\nb is 3; it must be an object"),
        ("pair", "remarks", [], "remarks is []; it must be an object"),
        ("pair", "feature_bytes", ..., "feature_bytes has 0 entries; with 4 blocks it must have 5"),
        ("pair", "gradient_bytes", [1, 2], "gradient_bytes has 2 entries; with 4 blocks it must have 5"),
        ("pair", "gradient_bytes.1", "1kB", 'gradient_bytes[1] is "1kB"; it must be a valid number'),
        ("pair", "sample_bytes", [1] * 5, "sample_bytes goes with other times of workers than this file has"),
        ("pair", "min_bits", [8], "min_bits has 1 entries; with 4 blocks it must have 5"),
        ("pair", "min_bits.1", 33, "min_bits[1] is 33; it must be less than or equal to 32"),
        ("pair", "min_bits.1", 0, "min_bits[1] is 0; it must be greater than or equal to 1"),
        ("pair", "max_staleness", -1, "max_staleness is -1"),
        ("pair", "max_staleness", 1.5, "max_staleness is 1.5"),
        ("pair", "codec_family", 8, "codec_family is 8; it must be a valid string"),
        ("pair", "encode", 0.1, "encode is 0.1; it must be a valid array"),
        ("pair", "encode", [0.1], "encode[1] is missing"),
        ("pair", "encode.0", math.nan, "encode[0] is NaN; it must be a finite number"),
        ("pair", "encode.1", 2e6, "encode[1] is 2000000.0; it must be less than or equal to 1000000"),
        ("pair", "workers.0", "edge", 'workers[0] is "edge"; it must be an object'),
        ("pair", "workers.0.name", "a b", 'workers[0].name is "a b"; it must be 1 to 63 letters, digits, - and _'),
        ("pair", "workers.1.name", "edge", "two workers are called 'edge'; each must have a name of its own"),
        ("pair", "workers.0.message", {"seconds": -1}, "workers[0].message.seconds is -1"),
        ("pair", "workers.0.message", {"waited": 1}, "there is no key workers[0].message.waited"),
        ("pair", "workers.0.serial", [[0, 1]], "workers[0].serial[0][2] is missing"),
        ("pair", "workers.0.by_samples", {"forward": []}, "workers[0].by_samples.backward is missing"),
        ("pair", "links.0", [1e6], "links[0] is [1000000.0]; it must be an object"),
        ("pair", "links.0.rate", 1e6, "there is no key links[0].rate"),
        ("chain", "workers.1.replayed.0", [0, 1, math.nan], "workers[1].replayed[0][2] is NaN"),
        ("chain", "workers.1.replayed.0", [0, 1, True], "workers[1].replayed[0][2] is true"),
        (
            "chain",
            "workers.1.replayed.0",
            [0, 4, 1.0],
            "workers[1].replayed has the blocks [0, 4) out of range or twice",
        ),
        (
            "chain",
            "workers.1.replayed.0",
            [2, 2, 1.0],
            "workers[1].replayed has the blocks [2, 2) out of range or twice",
        ),
        (
            "chain",
            "workers.1.replayed.0",
            [1, 2, 1.0],
            "workers[1].replayed has the blocks [1, 2) out of range or twice",
        ),
        ("chain", "workers", [{"name": f"s{i}"} for i in range(17)], "workers is [{"),
        ("chain", "links.0.between", ["s0", "far"], "links[0].between must be the names of two workers"),
        ("chain", "links.0.between", ["s0", "s0"], "links[0].between must be the names of two workers"),
        ("chain", "links.0.between", ["s0", 1], "links[0].between[1] is 1"),
        ("chain", "links.0.uplink", 0, "links[0].uplink is 0; it must be greater than 0"),
        ("chain", "links.0.uplink", math.inf, "links[0].uplink is Infinity; it must be a finite number"),
        ("chain", "links.0.uplink", "10mbit", 'links[0].uplink is "10mbit"; it must be a valid number'),
        (
            "chain",
            "links",
            [{"between": ["s0", "s1"]}, {"between": ["s1", "s0"]}],
            "links[1] is the second between s1 and s0",
        ),
        ("tiers", "label_bytes", ..., "label_bytes or an entry of sample_bytes is missing"),
        ("tiers", "sample_bytes.1", None, "label_bytes or an entry of sample_bytes is missing"),
        ("tiers", "sample_bytes", [1, 2], "sample_bytes has 2 entries; with 3 blocks it must have 4"),
        ("tiers", "feature_bytes", [1] * 4, "feature_bytes goes with other times of workers than this file has"),
        ("tiers", "blocks.1.min_samples", 9, "blocks[1].min_samples is 9; the batch size is 8"),
        ("tiers", "blocks.0.reads_raw", False, "blocks[0] must have parameter_bytes, and the first one reads_raw true"),
        ("tiers", "blocks.1.parameter_bytes", ..., "blocks[1] must have parameter_bytes"),
        ("tiers", "workers", [*FILES["tiers"]["workers"], {"name": "d"}], "there are 4 workers; three tiers are 3"),
        ("tiers", "workers.0.by_samples", ..., "workers[0] must have by_samples, as the others"),
        (
            "tiers",
            "workers.0.replayed",
            [[0, 1, 1.0]],
            "workers[0] must have by_samples, as the others, and no times of",
        ),
        (
            "tiers",
            "workers.0.by_samples.update",
            [0.0],
            "workers[0].by_samples.update has 1 entries; with 3 blocks it must",
        ),
        ("tiers", "workers.0.by_samples.forward.1", 0.1, "workers[0].by_samples.forward[1] is 0.1"),
        ("tiers", "workers.0.by_samples.backward.2", [0.1, -1], "workers[0].by_samples.backward[2][1] is -1"),
        ("tiers", "workers.2.by_samples.message", [0.0], "workers[2].by_samples.message[1] is missing"),
        ("tiers", "links", FILES["tiers"]["links"][:2], "there is no measured link between 'edge' and 'gpu'"),
        ("tiers", "links.0.round_trip_seconds", None, "there is no measured link between 'edge' and 'near'"),
        ("tiers", "shared_segments", [[0, 3]], "shared_segments[0] must be different numbers of links, from 0 to 2"),
        ("tiers", "shared_segments", [[0, 0]], "shared_segments[0] must be different numbers of links, from 0 to 2"),
        ("tiers", "codecs.uniform8.bits", 0, "codecs.uniform8.bits is 0"),
        ("tiers", "codecs.uniform8.encode", 1, "codecs.uniform8.encode is 1"),
    ],
)
def test_an_error_in_a_file_is_one_sentence_that_names_it(file, path, value, sentence):
    with pytest.raises(PlanError) as refused:
        parse_profile(changed(file, path, value), "f.json")
    text = str(refused.value)
    assert text.startswith("f.json: ")
    assert sentence in text
    assert "\n" not in text
    assert refused.value.exit_code is ExitCode.PLAN


@pytest.mark.parametrize(
    "schema", [None, 1, [], "isthmus.profile/v2", "isthmus.chain/v1", "isthmus.tiers/v1", "isthmus.profile/v4"]
)
def test_an_older_file_is_told_from_today_s_and_has_to_be_measured_again(schema):
    with pytest.raises(PlanError) as refused:
        parse_profile(FILES["pair"] | {"schema": schema}, "f.json")
    told = json.dumps(schema)
    assert str(refused.value) == (
        f'f.json: schema is {told}; this version reads "isthmus.profile/v3", so profile again with `edge-agent profile`'
    )


@pytest.mark.parametrize("bad", [-1, -0.001, math.nan, math.inf, -math.inf, True, "3", [], 10**400, 1e300], ids=str)
@pytest.mark.parametrize(
    ("file", "path", "key"),
    [
        ("pair", "feature_bytes.2", "feature_bytes[2]"),
        ("pair", "blocks.1.parameter_bytes", "blocks[1].parameter_bytes"),
        ("chain", "workers.0.replayed.1.2", "workers[0].replayed[1][2]"),
        ("chain", "links.0.round_trip_seconds", "links[0].round_trip_seconds"),
        ("tiers", "workers.1.by_samples.update.0", "workers[1].by_samples.update[0]"),
        ("tiers", "label_bytes", "label_bytes"),
    ],
)
def test_every_number_is_bounded_and_finite(file, path, key, bad):
    with pytest.raises(PlanError) as refused:
        parse_profile(changed(file, path, bad), "f.json")
    assert str(refused.value).startswith(f"f.json: {key} is ")


@pytest.mark.parametrize(("blocks", "workers"), [(2047, 2), (723, 16)])
def test_runs_of_blocks_are_bounded_before_any_room_is_taken(blocks, workers):
    least = {"schema": PAIR_FILE["schema"], "model": "m", "batch_size": 1}

    def document(blocks: int) -> dict:
        named = [{"name": f"w{index}"} for index in range(workers)]
        sizes = {"feature_bytes": [None] * (blocks + 1), "gradient_bytes": [None] * (blocks + 1)}
        return least | sizes | {"blocks": [{"name": "b", "bytes": 0}] * blocks, "workers": named}

    assert len(parse_profile(document(blocks), "f.json")) == blocks
    with pytest.raises(PlanError, match=f"{blocks + 1} blocks on {workers} workers have more than 8388608 runs"):
        parse_profile(document(blocks + 1), "f.json")


def test_a_file_of_layers_has_no_times_of_workers():
    with pytest.raises(PlanError, match=r"layers\.json: no times of workers are in it, .* `edge-agent profile`"):
        load_profile(Path("edge_agent/demo/layers.json"))


@pytest.mark.parametrize("decoded", [[], "chain", None, 1])
def test_json_that_is_no_object_is_refused(decoded):
    with pytest.raises(PlanError, match=r"f\.json: a profile is a JSON object, not "):
        parse_profile(decoded, "f.json")


NESTED = '{"schema": "isthmus.profile/v3", "model": "m", "remarks": {"a": %s}}'


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"schema": NaN', "[" * 100_000, "\x00", NESTED % ("[" * 500 + "]" * 500), NESTED % "NaN"],
    ids=lambda text: text[:10],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"profile\.json: ") as refused:
        load_profile(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "absent", "."):
        with pytest.raises(PlanError, match=str(tmp_path)):
            load_profile(tmp_path / name)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(b"[" * (16 * 2**20 + 1))
    with pytest.raises(PlanError, match="the profile has 16777217 bytes; 16777216 is the most"):
        load_profile(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([(file, key) for file, document in FILES.items() for key in sorted(document)]), json_values)
def test_whatever_stands_in_a_field_is_a_profile_or_one_sentence(place, value):
    file, key = place
    said = ""
    try:
        parse_profile(FILES[file] | {key: value}, "file")
    except PlanError as error:
        said = str(error)
    assert said == "" or (said.startswith("file: ") and "\n" not in said)
