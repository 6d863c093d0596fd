"""Files of chains: their content, and one sentence for each error in one."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.planning import MeasuredLink, Rates, load_profile, parse_profile, profile_to_json
from shared.errors import ExitCode, PlanError
from tests.support.planning.chains import chain_document

GOOD = chain_document(3, 2, seed=3)
NOTHING = [[None] * 4 for _ in range(4)]


def test_a_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(
        json.dumps(GOOD | {"links_between": [{"from": "s1", "to": "s0", **GOOD["links"][0]}], "host": "pi"})
    )
    chain = load_profile(path)
    assert (len(chain), chain.batch_size, chain.names) == (3, 32, ("s0", "s1"))
    assert chain.feature_bytes == tuple(GOOD["feature_bytes"])
    assert chain.worker("s1").replayed[1, 3] == GOOD["stages"][1]["seconds"][1][3]
    assert math.isnan(chain.worker("s1").replayed[3, 1])
    assert chain.rates("s0", "s1") == Rates(*GOOD["links"][0].values())
    assert chain.link("s1", "s0") == MeasuredLink(*GOOD["links"][0].values())
    assert not chain.links_stay


def changed(path: str, value: object) -> dict:
    """Return the good file with another value at a path, as stages.0.name; `...` leaves the key out."""
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
        ("schema", "isthmus.chain/v2", 'schema is "isthmus.chain/v2"; this version reads "isthmus.profile/v2"'),
        ("model", ..., "model is missing; a chain of schema isthmus.chain/v1 has it"),
        ("batch_size", 0, "batch_size is 0; it must be a whole number of 1 or more"),
        ("blocks", [], "blocks is []; it must be a list of one block or more"),
        ("feature_bytes", [1, 2], "feature_bytes has 2 entries; with 3 blocks it must have 4, one a cut"),
        ("gradient_bytes.1", "1kB", 'gradient_bytes[1] is "1kB"; it must be a finite number of 0 or more'),
        ("encode", ..., "encode is missing"),
        ("encode.seconds", math.nan, "encode.seconds is NaN; it must be a finite number of 0 or more"),
        ("min_bits", [2], "min_bits has 1 entries; with 3 blocks it must have 4"),
        ("min_bits", [None, 0, 2, None], "min_bits[1] is 0; it must be an integer of 1 to 32"),
        ("stages", {}, "stages is {}; it must be a list of one stage or more"),
        ("stages.0", "s0", 'stages[0] is "s0"; it must be an object with "name"'),
        ("stages.1.name", "s0", "two stages are called 's0'"),
        ("stages.1.seconds", [], "stages[1].seconds has 0 entries; with 3 blocks it must have 4"),
        ("stages.1.seconds.2", None, "stages[1].seconds[2] is null; it must be a list of 4 entries"),
        ("stages.1.seconds.2", [1.0], "stages[1].seconds[2] has 1 entries; with 3 blocks it must have 4"),
        ("stages.1.seconds.0.1", math.nan, "stages[1].seconds[0][1] is NaN; it must be a finite number of 0 or more"),
        ("stages.1.seconds.0.1", -1.0, "stages[1].seconds[0][1] is -1.0"),
        ("stages.1.seconds.0.1", True, "stages[1].seconds[0][1] is true"),
        ("stages.1.seconds", NOTHING, "nothing was measured on stage 's1'"),
        ("links", [], "links is []; it must be a list of 1, one between each two neighbours of 2 stages"),
        ("links.0", [1e6, 1e6, 0.0], "links[0] is [1000000.0, 1000000.0, 0.0]; it must be an object with uplink"),
        ("links.0.downlink", ..., "it must be an object with uplink, downlink, round_trip_seconds, rates in bit/s"),
        ("links.0.uplink", "10mbit", 'links[0].uplink is "10mbit"; it must be a finite number'),
        ("links.0.uplink", 0, "links[0]: the uplink rate is 0 bit/s; it must be above 0 and finite"),
        ("links.0.uplink", math.inf, "links[0].uplink is Infinity; it must be a finite number"),
        ("links.0.round_trip_seconds", None, "links[0].round_trip_seconds is null"),
        ("links_between", {}, "links_between is {}; it must be a list of links"),
        ("links_between", [{"from": "s0", "to": "far"}], "the names of two stages"),
        ("links_between", [{"from": "s0", "to": ["s1"]}], "the names of two stages"),
        ("links_between", [{"from": "s0", "to": "s1"}], "it must be an object with uplink"),
    ],
)
def test_each_error_gets_one_sentence(path, value, sentence):
    with pytest.raises(PlanError) as refused:
        parse_profile(changed(path, value), "c.json")
    text = str(refused.value)
    assert text.startswith("c.json: ")
    assert sentence in text
    assert "\n" not in text
    assert refused.value.exit_code is ExitCode.PLAN


def test_a_chain_has_as_many_blocks_as_stages_at_least():
    assert len(parse_profile(chain_document(3, 3), "c.json").workers) == 3
    with pytest.raises(PlanError, match="there are 4 stages and 3 blocks, and each stage must have a block at least"):
        parse_profile(chain_document(3, 4), "c.json")


@pytest.mark.parametrize("decoded", [[], "chain", None, 1])
def test_json_that_is_no_object_is_refused(decoded):
    with pytest.raises(PlanError, match=r"c\.json: a profile is a JSON object, not "):
        parse_profile(decoded, "c.json")


def test_without_a_stage_its_links_are_one():
    chain = parse_profile(json.loads(Path("deploy/demo/chain.json").read_text()), "demo")
    direct = chain.among({"gpu", "edge"})
    assert direct.names == ("edge", "gpu")
    assert direct.rates("edge", "gpu") == Rates(10e6, 50e6, 0.04), "the file has a link between the two"
    neighbours = {hop: link for hop, link in chain.links.items() if set(hop) != {"edge", "gpu"}}
    passed = replace(chain, links=neighbours).among({"edge", "gpu"})
    assert passed.rates("edge", "gpu") == Rates(20e6, 50e6, 0.044), "the least rates of what is passed, all round trips"
    assert chain.among({"gateway"}).links == {}
    assert profile_to_json(chain.among(chain.names)) == profile_to_json(chain)
