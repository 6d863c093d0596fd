"""`edge-agent plan --strategy`, and `edge-agent simulate` of a group, as a user meets them: their output and their refusals."""

import json
from dataclasses import replace

import pytest

from edge_agent.planner_names import STRATEGY_NAMES
from edge_agent.planning import SCHEMA, ProfiledBlock, Rates, profile_to_json
from edge_agent.planning.schedules import STRATEGIES, bound_seconds, layers_of, load_layers
from shared.errors import ExitCode
from tests.support.planning.cases import small_profile

SIZES = (10e6, 20e6, 30e6, 40e6)
LINK = ("--uplink", "80mbit", "--downlink", "160mbit")


@pytest.fixture
def layers_path(tmp_path):
    path = tmp_path / "layers.json"
    seconds = {"pull_seconds": 1.0, "forward_seconds": 1.0, "backward_seconds": 2.0, "push_seconds": 1.0}
    rows = [{"name": f"l{place}", "bytes": 8_000_000, **seconds} for place in range(3)]
    path.write_text(json.dumps({"schema": SCHEMA, "model": "small", "message_seconds": 0.01, "layers": rows}))
    return path


@pytest.fixture
def profile():
    blocks = small_profile().blocks
    return replace(
        small_profile(),
        blocks=tuple(ProfiledBlock(block.name, block.bytes, size) for block, size in zip(blocks, SIZES, strict=True)),
    )


@pytest.fixture
def profile_path(tmp_path, profile):
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(profile))
    return path


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("second,bytes per second\n" + "".join(f"{second},10000000\n" for second in range(30)))
    return path


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_a_schedule_prints_the_fields_that_are_promised(edge_agent, layers_path, strategy):
    code, out, err = edge_agent("plan", "--profile", layers_path, "--strategy", strategy, "--members", 2, "--json")
    assert (code, err) == (0, "")
    printed, expected = json.loads(out), STRATEGIES[strategy](load_layers(layers_path).among(2))
    for field in ("forward_seconds", "backward_seconds", "step_seconds", "message_bytes", "slice_bytes"):
        assert printed[field] == getattr(expected, field)
    for field in ("pull_segments", "push_segments"):
        segments = getattr(expected, field)
        assert printed[field] == (None if segments is None else [list(segment) for segment in segments])
    assert printed["bound_seconds"] == bound_seconds(load_layers(layers_path).among(2))
    assert len(printed["events"]) == len(expected.events)
    assert set(printed["events"][0]) == {"kind", "layer", "bytes", "begin", "end"}


def test_a_schedule_of_a_profile_is_that_of_its_layers_over_the_link(edge_agent, profile, profile_path):
    code, out, _ = edge_agent(
        "plan", "--strategy", "flow", "--profile", profile_path, *LINK, "--round-trip", "20ms", "--json"
    )
    assert code == 0
    expected = STRATEGIES["flow"](layers_of(profile, Rates(80e6, 160e6, 0.02)))
    assert json.loads(out)["step_seconds"] == expected.step_seconds


def test_a_schedule_is_told_in_words(edge_agent, layers_path):
    _, out, _ = edge_agent("plan", "--profile", layers_path, "--strategy", "layerwise")
    assert out.splitlines() == [
        "layerwise: 11.04 s a step (no exchange takes less than 10.02 s)",
        "  forward 4.03 s, layers [0, 1), [1, 2), [2, 3) pulled",
        "  backward 7.01 s, layers [2, 3), [1, 2), [0, 1) pushed",
    ]
    _, out, _ = edge_agent("plan", "--profile", layers_path, "--strategy", "flow")
    assert "messages of slices" in out
    assert "a message is full at" in out


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--profile", "{profile}"), ExitCode.USAGE, "give --uplink and --downlink"),
        (("--profile", "{layers}", "--strategy", "fast"), ExitCode.USAGE, "is not one of sequential"),
        (("--profile", "{layers}", "--members", "0"), ExitCode.PLAN, "the group has 0 members; it must have 1 to 1024"),
        (
            ("--profile", "{layers}", "--uplink", "1mbit"),
            ExitCode.PLAN,
            "has layers, whose seconds are those of their own",
        ),
        (("--profile", "{layers}", "--bits", "8"), ExitCode.PLAN, "--bits says nothing about a schedule; leave it out"),
        (("--profile", "nowhere.json"), ExitCode.PLAN, "the profile cannot be read"),
    ],
)
def test_a_wrong_question_is_answered_with_a_sentence(edge_agent, layers_path, profile_path, options, code, sentence):
    given = [option.format(layers=layers_path, profile=profile_path) for option in options]
    ended, _, err = edge_agent("plan", "--strategy", "flow", *given)
    assert ended == code
    assert sentence in " ".join(err.replace("│", " ").split())


def test_a_simulation_shows_all_strategies_side_by_side(edge_agent, profile_path, trace_path):
    simulate = ("simulate", "--profile", profile_path, "--trace", trace_path, "--members", 2)
    code, out, _ = edge_agent(*simulate, "--strategy", "all", "--json")
    assert code == 0
    runs = json.loads(out)
    assert [run["strategy"] for run in runs] == list(STRATEGY_NAMES)
    seconds = {run["strategy"]: run["seconds_per_100_steps"] for run in runs}
    assert seconds["flow"] < seconds["dynacomm"] <= min(seconds["layerwise"], seconds["ibatch"], seconds["sequential"])
    saved = [1 - taken / seconds["sequential"] for taken in seconds.values()]
    assert [run["saved"] for run in runs] == pytest.approx(saved), "of the seconds of the sequential one"
    _, out, _ = edge_agent(*simulate, "--strategy", "flow", "--strategy", "layerwise")
    assert [line.split()[0] for line in out.splitlines()] == ["strategy", "flow", "layerwise"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--strategy", "fast"), "--strategy is 'fast'; it must be all, or one of sequential"),
        (
            ("--strategy", "all", "--planner", "greedy"),
            "--planner is for planners and says nothing about the strategies",
        ),
        (("--members", "2"), "--members is for a group; give --strategy, too"),
    ],
)
def test_a_simulation_of_a_group_refuses_what_says_nothing_about_it(
    edge_agent, profile_path, trace_path, options, sentence
):
    code, _, err = edge_agent("simulate", "--profile", profile_path, "--trace", trace_path, *options)
    assert code == ExitCode.PLAN
    assert sentence in err
