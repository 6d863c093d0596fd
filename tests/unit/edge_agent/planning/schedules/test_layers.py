"""Files of layers: what is wrong is refused in a sentence that names the place, and what a profile says becomes layers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.planning import SCHEMA, LinkTrace, ProfiledBlock, Rates, Trace
from edge_agent.planning.schedules import compare_strategies, layers_of, load_layers, parse_layers
from shared.errors import PlanError
from tests.support.planning.cases import small_profile

LAYER = {
    "name": "fc",
    "bytes": 4000,
    "pull_seconds": 0.5,
    "forward_seconds": 1,
    "backward_seconds": 2.5,
    "push_seconds": 0.25,
}
FILE = {"schema": SCHEMA, "model": "small", "message_seconds": 0.014, "layers": [LAYER, LAYER]}
RATES = Rates(8e6, 16e6, 0.125)


def with_parameters(profile):
    """The profile with 1, 2, 3 and 4 MB of parameters."""
    sizes = enumerate(profile.blocks, start=1)
    return replace(profile, blocks=tuple(ProfiledBlock(block.name, block.bytes, 1e6 * size) for size, block in sizes))


def test_a_file_of_layers_is_read(tmp_path):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(FILE))
    found = load_layers(path)
    assert (found.model, found.message_seconds, found.names) == ("small", 0.014, ("fc", "fc"))
    assert (found.bytes, found.pull_seconds, found.push_seconds) == ((4000, 4000), (0.5, 0.5), (0.25, 0.25))
    assert (found.forward_seconds, found.backward_seconds) == ((1, 1), (2.5, 2.5))


def of_layer(**changes):
    return {"layers": [LAYER, LAYER | changes]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": "isthmus.layers/v1"}, 'f: schema is "isthmus.layers/v1"; this version reads "isthmus.profile/v3"'),
        ({"model": 3}, "f: model is 3; it must be a valid string"),
        ({"message_seconds": -0.1}, "f: message_seconds is -0.1; it must be greater than or equal to 0"),
        ({"message_seconds": float("nan")}, "f: message_seconds is NaN; it must be a finite number"),
        ({"message_seconds": True}, "f: message_seconds is true; it must be a valid number"),
        ({"message_seconds": 2e6}, r"f: message_seconds is 2000000.0; it must be less than or equal to 1000000"),
        ({"layers": []}, "f: layers is missing"),
        ({"layers": [LAYER] * 4097}, r"f: layers is \[\{.*at most 4096 items"),
        ({"layers": {"fc": LAYER}}, r"f: layers is \{.*; it must be a valid array"),
        ({"layers": [LAYER, 3]}, r"f: layers\[1\] is 3; it must be an object"),
        (of_layer(name=""), r'f: layers\[1\].name is ""; string should have at least 1 character'),
        (of_layer(bytes=-1), r"f: layers\[1\].bytes is -1; it must be greater than or equal to 0"),
        (of_layer(bytes=1.5), r"f: layers\[1\].bytes is 1.5; it must be a valid integer"),
        (
            of_layer(bytes=2**41),
            r"f: layers\[1\].bytes is 2199023255552; it must be less than or equal to 1099511627776",
        ),
        (of_layer(forward_seconds=-1), r"f: layers\[1\].forward_seconds is -1; it must be greater than or equal to 0"),
        (of_layer(backward_seconds="1"), r'f: layers\[1\].backward_seconds is "1"; it must be a valid number'),
        (of_layer(push_seconds=float("inf")), r"f: layers\[1\].push_seconds is Infinity; it must be a finite number"),
        (of_layer(pull_seconds=10**400), r"f: layers\[1\].pull_seconds is 1000+\.\.\.; it must be"),
        (of_layer(bytes=0), r"f: layers\[1\] is \{.*; pull_seconds and push_seconds must be 0"),
        ({"layers": [LAYER | {"bytes": 2**40}] * 2}, "f: the layers have more than 1099511627776 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_of_layers_is_said_in_a_sentence(changes, sentence):
    with pytest.raises(PlanError, match=sentence):
        parse_layers(FILE | changes, "f")


@pytest.mark.parametrize("key", LAYER)
def test_a_key_of_a_layer_that_is_missing_is_named(key):
    with pytest.raises(PlanError, match=rf"f: layers\[0\].{key} is missing"):
        parse_layers(FILE | {"layers": [{name: value for name, value in LAYER.items() if name != key}]}, "f")


@pytest.mark.parametrize("key", ["model", "message_seconds", "layers"])
def test_a_key_of_the_file_that_is_missing_is_named(key):
    with pytest.raises(PlanError, match=f"f: {key} is missing"):
        parse_layers({name: value for name, value in FILE.items() if name != key}, "f")


def test_a_profile_becomes_layers_over_the_given_rates():
    """Blocks of 1, 1, 1 and 2 s on the device; the forward pass has a third."""
    found = layers_of(with_parameters(small_profile()), RATES)
    assert found.names == ("b0", "b1", "b2", "b3")
    assert found.bytes == (1e6, 2e6, 3e6, 4e6)
    assert found.push_seconds == (1, 2, 3, 4)
    assert found.pull_seconds == (0.5, 1, 1.5, 2)
    assert np.add(found.forward_seconds, found.backward_seconds) == pytest.approx([1, 1, 1, 2])
    assert np.multiply(found.forward_seconds, 2) == pytest.approx(found.backward_seconds)
    assert found.message_seconds == 0.125


def test_blocks_that_were_measured_together_are_one_layer():
    profile = with_parameters(small_profile(edge_seconds=(None, None, 2.0, 3.0, 5.0)))
    found = layers_of(profile, RATES)
    assert (found.names, found.bytes) == (("b0+b1", "b2", "b3"), (3e6, 3e6, 4e6))


def test_a_device_that_cannot_run_the_whole_model_has_no_layers():
    profile = with_parameters(small_profile(edge_seconds=(None, 1.0, 2.0, 3.0, None)))
    with pytest.raises(PlanError, match="no time of all 4 blocks on 'edge'"):
        layers_of(profile, RATES)


def test_a_profile_from_before_the_bytes_of_parameters_is_refused():
    with pytest.raises(PlanError, match="does not say the parameter_bytes of block 'b0'; profile again"):
        layers_of(small_profile(), RATES)


def test_over_a_constant_link_a_run_takes_what_the_schedule_says():
    profile = with_parameters(small_profile())
    link = LinkTrace(Trace.constant(8e6), Trace.constant(16e6), 0.125)
    seconds = compare_strategies(profile, link, 1, 60.0, ("flow",))
    whole = layers_of(profile, RATES)
    assert list(seconds) == ["sequential", "flow"]
    assert seconds["sequential"] == pytest.approx(100 * (10 + 5 + 5 + 2 * 0.125))
    assert 100 * sum(whole.push_seconds) <= seconds["flow"] < seconds["sequential"]


def test_where_a_link_carries_nothing_for_a_while_no_step_is_done_meanwhile():
    profile = with_parameters(small_profile())
    stops = Trace([0.0, 30.0, 60.0], [8e6, 0.0])
    half, whole = (
        compare_strategies(profile, LinkTrace(trace, trace), 1, 60.0, ("sequential",))["sequential"]
        for trace in (stops, Trace.constant(8e6))
    )
    assert half == pytest.approx(2 * whole, rel=0.01)


def test_a_profile_whose_steps_take_no_time_has_nothing_to_compare():
    idle = small_profile(edge_seconds=(None, 0.0, 0.0, 0.0, 0.0))
    idle = replace(idle, blocks=tuple(ProfiledBlock(block.name, block.bytes, 0.0) for block in idle.blocks))
    link = LinkTrace(Trace.constant(8e6), Trace.constant(8e6))
    with pytest.raises(PlanError, match="a step of the profile takes no time at all"):
        compare_strategies(idle, link, 1, 60.0, ("sequential",))
