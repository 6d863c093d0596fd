"""Files of three tiers: their content, and one sentence for each error in one."""

import copy
import json
import math

import numpy as np
import pytest

from edge_agent.planning import BlockSeconds, CodecCosts, Linear, MessageSeconds, Rates, load_profile, parse_profile
from shared.errors import ExitCode, PlanError
from shared.placement import Cargo, Crossing, Rows
from tests.support.planning.tiers import NAMES, tiers_document

GOOD = tiers_document(3, 8, seed=1, codecs=True) | {"shared_segments": [[0, 2]], "message": [0.001, 1e-9]}


def test_a_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps(GOOD))
    profile = load_profile(path)
    assert (len(profile), profile.batch_size, profile.names) == (3, 8, NAMES)
    assert [block.min_samples for block in profile.blocks] == [block["min_samples"] for block in GOOD["blocks"]]
    costs = profile.by_samples
    first = GOOD["workers"][1]
    assert costs.blocks["near"][2] == BlockSeconds(
        Linear(*first["forward"][2]), Linear(*first["backward"][2]), first["update"][2]
    )
    assert costs.feature_bytes == (GOOD["input_bytes"], *GOOD["feature_bytes"][1:])
    assert costs.weight_bytes == tuple(block["bytes"] for block in GOOD["blocks"])
    assert costs.codecs == {"uniform8": CodecCosts(8, Linear(1e-4, 1e-9), Linear(1e-4, 1e-9))}
    assert costs.overhead == Linear(0.001, 1e-9)
    link = GOOD["links"][0]
    assert profile.rates("near", "edge") == Rates(link["down"], link["up"], link["round_trip_seconds"])
    assert profile.shared_segments == ((("edge", "near"), ("edge", "gpu")),)


def test_whole_batches_take_what_their_blocks_take():
    profile = parse_profile(GOOD, "tiers")
    near = profile.worker("near")
    blocks = profile.by_samples.blocks["near"]
    forward, backward = ([getattr(block, way).at(8) for block in blocks] for way in ("forward", "backward"))
    updates = [block.update for block in blocks]
    assert near.serial[0, 2] == pytest.approx(sum(forward[:2]) + sum(backward[:2]) + sum(updates[:2]))
    assert near.replayed[0, 2] == pytest.approx(near.serial[0, 2] + sum(forward[:2]))
    assert near.replayed[1, 3] == near.serial[1, 3], "after the last block the backward pass follows at once"
    assert np.isnan(near.serial[2, 1])


def test_codecs_and_the_cost_of_a_message_may_be_left_out():
    profile = parse_profile({key: value for key, value in GOOD.items() if key not in ("codecs", "message")}, "tiers")
    assert (profile.by_samples.codecs, profile.by_samples.overhead) == ({}, Linear(0.0))


def test_a_worker_may_have_a_cost_of_a_message_of_its_own():
    profile = parse_profile(changed("workers.1.message", [0.02, 1e-8]), "tiers")
    both_ends = [profile.worker(name).message for name in NAMES]
    assert both_ends == [MessageSeconds(2 * s, each, s) for s, each in ((0.001, 1e-9), (0.02, 1e-8), (0.001, 1e-9))]
    up, down = (
        profile.by_samples.message(Crossing(sender, receiver, Cargo.WEIGHTS, 1, Rows(0, 0)), None)
        for sender, receiver in (("edge", "near"), ("near", "edge"))
    )
    size = GOOD["blocks"][1]["bytes"]
    assert (up.send_tail_seconds, up.receive_tail_seconds) == (0.001 + 1e-9 * size, 0.02 + 1e-8 * size)
    assert (down.send_tail_seconds, down.receive_tail_seconds) == (up.receive_tail_seconds, up.send_tail_seconds)
    assert up.send_seconds == up.receive_seconds == 0.0, "nothing waits for it"


def test_renamed_workers_keep_their_times_and_segments():
    profile = parse_profile(changed("workers.1.message", [0.02, 1e-8]), "tiers").named(("a", "b", "c"))
    assert profile.by_samples.messages == {"b": Linear(0.02, 1e-8)}
    assert tuple(profile.by_samples.blocks) == profile.names == ("a", "b", "c")
    assert profile.shared_segments == ((("a", "b"), ("a", "c")),)


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
        ("schema", "isthmus.tiers/v2", 'schema is "isthmus.tiers/v2"; this version reads'),
        ("model", ..., "model is missing; a profile of schema isthmus.tiers/v1 has it"),
        ("batch_size", 0, "batch_size is 0; it must be a whole number of 1 or more"),
        ("input_bytes", -1, "input_bytes is -1; it must be a finite number of 0 or more"),
        ("label_bytes", ..., "label_bytes is missing"),
        ("blocks", [], "blocks is []; it must be a list of one entry or more"),
        ("blocks.1.min_samples", ..., '"bytes" and "min_samples", numbers'),
        ("blocks.1.min_samples", 9, "blocks[1].min_samples is 9; it must be a whole number of 1 to 8, the batch size"),
        ("blocks.2.whole", 1, "blocks[2].whole is 1; it must be true or false"),
        ("blocks.1.reads_raw", "no", 'blocks[1].reads_raw is "no"; it must be true or false, and true for the first'),
        ("blocks.0.reads_raw", False, "blocks[0].reads_raw is false; it must be true or false, and true for the first"),
        ("feature_bytes", [1, 2], "feature_bytes has 2 entries; with 3 blocks it must have 4, one a cut"),
        ("feature_bytes.2", math.inf, "feature_bytes[2] is Infinity; it must be a finite number of 0 or more"),
        ("workers", GOOD["workers"][:2], "workers has 2 entries; three tiers are 3 workers"),
        ("workers.1.name", "edge", "two workers are called 'edge'; each must have a name of its own"),
        ("workers.1.name", "a b", 'workers[1].name is "a b"; it must be 1 to 63 letters, digits, - and _'),
        ("workers.0.update", [0.0], "workers[0].update is [0.0]; it must be a list of 3 entries, one a block"),
        ("workers.0.forward.1", 0.1, "workers[0].forward[1] is 0.1; it must be a pair [seconds, seconds for each"),
        ("workers.0.backward.2", [0.1, -1], "workers[0].backward[2][1] is -1; it must be a finite number of 0 or more"),
        ("links", GOOD["links"][:2], "there is no link between 'edge' and 'gpu'; every two workers must have one"),
        ("links.1.between", ["edge", "near"], "links[1]: there are two links between 'edge' and 'near'; leave one out"),
        ("links.1.between", ["edge", "moon"], '"between", two of edge, near, gpu'),
        ("links.0.up", 0, "links[0]: the uplink rate is 0 bit/s; it must be above 0 and finite"),
        ("links.0.down", ..., "an object with up, down, round_trip_seconds, rates in bit/s"),
        ("shared_segments", [[0, 3]], "shared_segments[0] is [0, 3]; it must be a list of different numbers of links"),
        ("codecs.uniform8.bits", 0, "codecs.uniform8.bits is 0; it must be a whole number of 1 to 32"),
        ("codecs.uniform8.encode", 1, "codecs.uniform8.encode is 1; it must be a pair"),
        ("message", [0.0], "message is [0.0]; it must be a pair"),
        ("workers.2.message", [0.0, -1], "workers[2].message[1] is -1; it must be a finite number of 0 or more"),
    ],
)
def test_an_error_in_a_file_is_one_sentence_that_names_it(path, value, sentence):
    with pytest.raises(PlanError) as caught:
        parse_profile(changed(path, value), "tiers.json")
    assert str(caught.value).startswith("tiers.json: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.PLAN
