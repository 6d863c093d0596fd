"""Profiles and their files: a file is read as it stands, and what is written is read again to the last digit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import (
    BlockSeconds,
    CodecCosts,
    Linear,
    MeasuredLink,
    MessageSeconds,
    Profile,
    Rates,
    load_profile,
    parse_profile,
    profile_to_json,
    with_batch_size,
)
from edge_agent.planning.cost import conditions_of
from edge_agent.planning.cost.conditions import UNKNOWN_RATE
from edge_agent.planning.profile_operations import measured_rates
from shared.errors import PlanError
from shared.placement import Cargo, Crossing, Link, Rows
from tests.support.planning.cases import PAIR_FILE, measured, profiles, small_profile
from tests.support.planning.chains import chain_document, seconds_of
from tests.support.planning.tiers import NAMES, tiers_document

CHAIN = parse_profile(chain_document(4, 3, seed=3), "chain")
DEMO = Path("edge_agent/demo")


def tiers(**messages: list[float]) -> dict:
    """A file of three tiers. messages: what those of some workers cost; of others each takes a millisecond."""
    document = tiers_document(3, 8, seed=1, codecs=True) | {"shared_segments": [[0, 2]]}
    for worker in document["workers"]:
        worker["by_samples"]["message"] = messages.get(worker["name"], [0.001, 1e-9])
    return document


def survives(profile: Profile) -> None:
    text = profile_to_json(profile)
    again = parse_profile(json.loads(text), "file")
    assert profile_to_json(again) == text
    assert again.names == profile.names
    for after, before in zip(again.workers, profile.workers, strict=True):
        np.testing.assert_array_equal(after.replayed, before.replayed)
        np.testing.assert_array_equal(after.serial, before.serial)
        assert after.message == before.message
    for name in (
        "batch_size",
        "blocks",
        "feature_bytes",
        "gradient_bytes",
        "links",
        "encode",
        "min_bits",
        "by_samples",
    ):
        assert getattr(again, name) == getattr(profile, name), name
    for name in ("codec_family", "max_staleness", "links_stay", "shared_segments", "remarks"):
        assert getattr(again, name) == getattr(profile, name), name


@given(profiles())
def test_the_profile_of_a_pair_survives_its_file(profile):
    survives(profile)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_that_of_a_chain_does_too(blocks, workers, seed):
    survives(parse_profile(chain_document(blocks, workers, seed, holes=0.2), "chain"))


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 10**6), st.booleans())
def test_that_of_three_tiers_does_too(blocks, batch_size, seed, codecs):
    profile = parse_profile(tiers_document(blocks, batch_size, seed, codecs=codecs), "tiers")
    survives(profile)
    survives(with_batch_size(profile, 3 * batch_size))


def test_remarks_are_kept():
    remarks = {"device": "Pi 4", "spread": [1, None, {"a": 0.5}]}
    profile = parse_profile(PAIR_FILE | {"remarks": remarks}, "file")
    assert profile.remarks == remarks
    assert json.loads(profile_to_json(profile))["remarks"] == remarks


def test_a_file_of_a_pair_is_read_as_it_stands():
    assert profile_to_json(parse_profile(PAIR_FILE, "file")) == profile_to_json(small_profile())
    edge, trainer = PAIR_FILE["workers"]
    edge = edge | {
        "serial": [[0, 1, 0.5], [0, 3, 1.5], [0, 4, 4.0]],
        "message": {"seconds": 0.25, "seconds_per_byte": 1e-9, "waited_seconds": 0.125},
    }
    link = {"between": ["edge", "trainer"], "round_trip_seconds": 0.04}
    profile = parse_profile(PAIR_FILE | {"workers": [edge, trainer], "links": [link]}, "file")
    near, far = profile.workers
    assert [measured(profile, cut, serial=True)[0] for cut in range(1, 5)] == [0.5, 2.0, 1.5, 4.0]
    assert near.message == MessageSeconds(0.25, 1e-9, 0.125)
    assert far.message == MessageSeconds()
    assert profile.link("edge", "trainer") == MeasuredLink(None, None, 0.04)
    assert profile.round_trip_seconds("trainer", "edge") == 0.04
    assert np.isfinite(far.replayed).sum() == 3, "of a trainer only what ends the model was measured"


def test_what_a_file_leaves_out_is_not_known():
    least = {
        key: PAIR_FILE[key] for key in ("schema", "model", "batch_size", "blocks", "feature_bytes", "gradient_bytes")
    }
    profile = parse_profile(least | {"workers": [{"name": "edge"}]}, "file")
    assert np.isnan(profile.workers[0].replayed).all()
    assert (profile.links, profile.encode, profile.min_bits, profile.max_staleness) == ({}, None, None, None)
    assert (profile.codec_family, profile.by_samples, profile.blocks[0].parameter_bytes) == ("uniform", None, None)


def test_a_file_of_a_chain_is_read_as_it_stands():
    document = chain_document(4, 3, seed=3)
    assert (len(CHAIN), CHAIN.batch_size, CHAIN.names) == (4, 32, ("s0", "s1", "s2"))
    assert CHAIN.feature_bytes == tuple(document["feature_bytes"])
    for worker in document["workers"]:
        table = CHAIN.worker(worker["name"]).replayed
        assert {run: float(table[run]) for run in zip(*np.nonzero(~np.isnan(table)), strict=True)} == seconds_of(worker)
    assert CHAIN.links_stay


def test_a_link_has_two_ends_and_a_direction():
    link = CHAIN.link("s0", "s1")
    assert link is not None
    assert CHAIN.link("s1", "s0") == MeasuredLink(link.downlink, link.uplink, link.round_trip_seconds)
    assert CHAIN.link("s0", "s2") is None
    with pytest.raises(PlanError, match="nothing is known of the rates of a link from 's0' to 's2'"):
        CHAIN.rates("s0", "s2")
    turned = CHAIN.with_links({("s1", "s0"): MeasuredLink(1.0, 2.0, 0.5)})
    assert turned.link("s0", "s1") == MeasuredLink(2.0, 1.0, 0.5)


def test_without_a_worker_its_links_are_one():
    chain = load_profile(DEMO / "chain.json")
    direct = chain.among({"gpu", "edge"})
    assert direct.names == ("edge", "gpu")
    assert direct.rates("edge", "gpu") == Rates(10e6, 50e6, 0.04), "the file has a link between the two"
    neighbours = {hop: link for hop, link in chain.links.items() if set(hop) != {"edge", "gpu"}}
    passed = replace(chain, links=neighbours).among({"edge", "gpu"})
    assert passed.rates("edge", "gpu") == Rates(20e6, 50e6, 0.044), "the least rates of what is passed, all round trips"
    assert chain.among({"gateway"}).links == {}
    assert profile_to_json(chain.among(chain.names)) == profile_to_json(chain)


def test_an_unknown_link_is_the_path_through_all_between_for_whoever_asks():
    chain = load_profile(DEMO / "chain.json")
    chain = replace(chain, links={hop: link for hop, link in chain.links.items() if set(hop) != {"edge", "gpu"}})
    assert measured_rates(chain)[Link("edge", "gpu")] == conditions_of(chain).link(0, 2) == Rates(20e6, 50e6, 0.044)
    now = {(chain.names[0], chain.names[1]): Rates(1e6, 60e6, 0.5)}
    assert conditions_of(chain, now).link(0, 2) == Rates(1e6, 50e6, 0.54)
    unknown = replace(chain, links={})
    assert conditions_of(unknown).link(0, 2).uplink == UNKNOWN_RATE


def test_error_gradients_of_fewer_bits_are_so_much_smaller_and_nothing_else_is():
    profile = small_profile(gradient_bytes=(None, 4e6, None, 1e6, None))
    halved = profile.with_gradient_bits(16)
    assert halved.gradient_bytes == (None, 2e6, None, 5e5, None)
    assert halved.feature_bytes == profile.feature_bytes


def test_a_file_of_three_tiers_is_read_as_it_stands(tmp_path):
    document = tiers()
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps(document))
    profile = load_profile(path)
    assert (len(profile), profile.batch_size, profile.names) == (3, 8, NAMES)
    assert [block.min_samples for block in profile.blocks] == [block["min_samples"] for block in document["blocks"]]
    costs, near = profile.by_samples, document["workers"][1]["by_samples"]
    assert costs.blocks["near"][2] == BlockSeconds(
        Linear(*near["forward"][2]), Linear(*near["backward"][2]), near["update"][2]
    )
    assert costs.feature_bytes == tuple(document["sample_bytes"])
    assert costs.weight_bytes == tuple(block["parameter_bytes"] for block in document["blocks"])
    assert costs.codecs == {"uniform8": CodecCosts(8, Linear(1e-4, 1e-9), Linear(1e-4, 1e-9))}
    link = document["links"][0]
    assert profile.rates("near", "edge") == Rates(link["downlink"], link["uplink"], link["round_trip_seconds"])
    assert profile.shared_segments == ((("edge", "near"), ("edge", "gpu")),)


def test_whole_batches_take_what_their_blocks_take():
    profile = parse_profile(tiers(), "tiers")
    near = profile.worker("near")
    blocks = profile.by_samples.blocks["near"]
    forward, backward = ([getattr(block, way).at(8) for block in blocks] for way in ("forward", "backward"))
    updates = [block.update for block in blocks]
    assert near.serial[0, 2] == pytest.approx(sum(forward[:2]) + sum(backward[:2]) + sum(updates[:2]))
    assert near.replayed[0, 2] == pytest.approx(near.serial[0, 2] + sum(forward[:2]))
    assert near.replayed[1, 3] == near.serial[1, 3], "after the last block the backward pass follows at once"
    assert np.isnan(near.serial[2, 1])


def test_a_message_costs_each_worker_its_own():
    document = tiers(near=[0.02, 1e-8])
    profile = parse_profile(document, "tiers")
    both_ends = [profile.worker(name).message for name in NAMES]
    assert both_ends == [MessageSeconds(2 * s, each, s) for s, each in ((0.001, 1e-9), (0.02, 1e-8), (0.001, 1e-9))]
    up, down = (
        profile.by_samples.message(Crossing(sender, receiver, Cargo.WEIGHTS, 1, Rows(0, 0)), None)
        for sender, receiver in (("edge", "near"), ("near", "edge"))
    )
    size = document["blocks"][1]["bytes"]
    assert (up.send_tail_seconds, up.receive_tail_seconds) == (0.001 + 1e-9 * size, 0.02 + 1e-8 * size)
    assert (down.send_tail_seconds, down.receive_tail_seconds) == (up.receive_tail_seconds, up.send_tail_seconds)
    assert up.send_seconds == up.receive_seconds == 0.0, "nothing waits for it"


def test_codecs_and_the_cost_of_a_message_may_be_left_out():
    document = tiers()
    del document["codecs"]
    for worker in document["workers"]:
        del worker["by_samples"]["message"]
    costs = parse_profile(document, "tiers").by_samples
    assert (costs.codecs, [costs.message_at(name) for name in NAMES]) == ({}, [Linear(0.0)] * 3)


def test_renamed_workers_keep_their_times_and_segments():
    profile = parse_profile(tiers(near=[0.02, 1e-8]), "tiers").named(("a", "b", "c"))
    assert profile.by_samples.message_at("b") == Linear(0.02, 1e-8)
    assert tuple(profile.by_samples.blocks) == profile.names == ("a", "b", "c")
    assert profile.shared_segments == ((("a", "b"), ("a", "c")),)
