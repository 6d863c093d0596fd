"""`edge-agent plan` and `edge-agent simulate` as a user meets them: their output and their refusals."""

import json
import re

import pytest

from benchmarks.rivals.pair import jointdnn, over
from edge_agent.config import EngineSection
from edge_agent.planning import (
    Linear,
    Question,
    Rates,
    SearchSpace,
    accurate,
    first_layout,
    greedy,
    installed,
    load_profile,
    parts_of,
    profile_to_json,
)
from edge_agent.planning.group_choice import group_plans
from shared.errors import ExitCode
from shared.placement import parse_placement
from tests.conftest import ROOT
from tests.support.planning.cases import PAIR_FILE, asked, small_profile

PLAN = ("--uplink", "10mbit", "--downlink", "50mbit", "--json")
AT = Rates(10e6, 50e6)


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("second,bytes per second\n" + "".join(f"{i},{500_000 * (1 + i // 30 % 3)}\n" for i in range(120)))
    return path


def test_a_plan_prints_the_fields_that_are_promised(edge_agent, profile_path):
    code, out, err = edge_agent("plan", "--profile", profile_path, *PLAN, "--from-cut", 1, "--staleness", 2)
    assert (code, err) == (0, "")
    printed = json.loads(out)
    expected = accurate(*asked(small_profile(), AT, SearchSpace(staleness=2), from_cut=1))
    parts = parts_of(Question(small_profile()), expected.layout, over(small_profile(), AT))
    ((up, down),) = parts.links.values()
    assert printed == {
        "cut": expected.layout.tiles[0].stop,
        "staleness": 2,
        "bits": expected.layout.bits[0],
        "seconds_per_step": expected.seconds_per_step,
        "samples_per_second": expected.samples_per_second,
        "placement": printed["placement"],
        "worker_seconds": parts.workers,
        "link_seconds": [{"between": ["edge", "trainer"], "up": up, "down": down}],
        "migration_seconds": expected.migration_seconds,
        "evaluated": expected.evaluated,
        "notes": printed["notes"],
    }
    placement = parse_placement(printed["placement"], "printed", 4, small_profile().batch_size, 2)
    assert [tile.worker for tile in placement.tiles] == ["edge", "trainer"]
    assert set(placement.codecs.values()) <= {"uniform8"}


def test_each_planner_can_be_asked(edge_agent, profile_path):
    def answer(*more):
        code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, *more)
        assert code == 0
        return json.loads(out)

    assert answer("--planner", "greedy")["seconds_per_step"] == greedy(*asked(small_profile(), AT)).seconds_per_step
    serial = jointdnn(*asked(small_profile(), AT)).layout
    assert answer("--planner", "jointdnn")["cut"] == serial.tiles[0].stop
    assert answer("--planner", "edge-only")["cut"] == 4
    given = answer("--cut", "2", "--bits", "8", "--staleness", "1")
    assert (given["cut"], given["staleness"], given["bits"], given["evaluated"]) == (2, 1, 8, 1)
    assert answer("--bits", "4")["bits"] == 4
    slow = ("--uplink", "1kbit", "--downlink", "1kbit")
    assert answer(*slow)["cut"] == 4
    assert answer(*slow, "--no-edge-only")["cut"] == 3


def test_a_plan_over_a_long_way_keeps_more_batches_in_flight(edge_agent, profile_path):
    def answer(*more):
        code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, "--no-edge-only", *more)
        assert code == 0
        return json.loads(out)

    waiting = ("--cut", "3", "--bits", "32", "--staleness", "0")
    near, far = answer(*waiting), answer(*waiting, "--round-trip", "250ms")
    assert far["seconds_per_step"] - near["seconds_per_step"] == pytest.approx(0.25)
    expected = accurate(*asked(small_profile(), Rates(10e6, 50e6, 8.0), SearchSpace(allow_edge_only=False)))
    assert answer("--round-trip", "8 s")["staleness"] == expected.layout.staleness == 3
    profile_path.write_text(profile_to_json(small_profile(round_trip_seconds=0.25)))
    assert answer(*waiting)["seconds_per_step"] == far["seconds_per_step"], "as the pair was when it was measured"
    assert answer(*waiting, "--round-trip", "0ms")["seconds_per_step"] == near["seconds_per_step"]


def test_a_plan_with_all_blocks_on_the_edge_waits_for_nobody(edge_agent, profile_path):
    def seconds(*more):
        _, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, "--round-trip", "2s", *more)
        return json.loads(out)["seconds_per_step"]

    assert seconds("--planner", "edge-only") == pytest.approx(5.0)
    assert seconds("--cut", "4", "--bits", "32", "--staleness", "0") == pytest.approx(5.0)


def notes_of(edge_agent, profile_path, *more):
    code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, *more)
    assert code == 0
    said = json.loads(out)["notes"]
    code, in_words, _ = edge_agent("plan", "--profile", profile_path, *PLAN[:-1], *more)
    assert all(note in in_words for note in said)
    return said


def test_a_plan_says_where_nothing_was_calibrated(edge_agent, profile_path):
    (said,) = notes_of(edge_agent, profile_path, "--bits", "2", "--staleness", "3", "--no-edge-only", "--cut", "1")
    assert "nothing was calibrated" in said
    assert "2 bits and K = 3" in said
    assert notes_of(edge_agent, profile_path, "--bits", "32", "--staleness", "0", "--cut", "1") == []
    profile_path.write_text(profile_to_json(small_profile(min_bits=(None, 2, 2, 2, None))))
    assert notes_of(edge_agent, profile_path, "--bits", "2", "--staleness", "3", "--cut", "1") == []


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"edge_seconds": (None, 1.0, 2.0, 3.0, 0.5)}, ("--no-edge-only",), "0.5 s a step .*--no-edge-only forbids it"),
        ({}, ("--from-cut", "3", "--no-edge-only", "--horizon", "1"), "to move the blocks there takes"),
        ({"min_bits": (None, 32, 32, 32, None)}, ("--no-edge-only",), "the calibration found"),
    ],
)
def test_a_plan_says_why_it_did_not_take_what_looks_faster(edge_agent, profile_path, changes, arguments, said):
    profile_path.write_text(profile_to_json(small_profile(**({"min_bits": (None, 8, 8, 8, None)} | changes))))
    assert any(re.search(said, note) for note in notes_of(edge_agent, profile_path, *arguments))
    assert notes_of(edge_agent, profile_path, "--cut", "1", "--bits", "32") == [], "who names the cut means it"


def test_a_plan_in_words_says_where_the_blocks_are(edge_agent, profile_path):
    code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN[:-1], "--from-cut", 1)
    assert code == 0
    assert "  edge: blocks [0, " in out
    assert "  trainer: blocks [" in out
    assert "best of" in out


def test_the_plans_after_the_best_are_shown_with_what_speaks_against_them(edge_agent, profile_path):
    code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, "--explain", "--planner", "greedy")
    assert code == 0
    printed = json.loads(out)
    seconds = [one["seconds_per_step"] for one in printed["ranked"][1:]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3
    assert all(one["reason"] for one in printed["ranked"])
    _, in_words, _ = edge_agent("plan", "--profile", profile_path, *PLAN[:-1], "--explain")
    _, _, after = in_words.partition("s/step  layout\n")
    assert sum(": " in line and "note: " not in line for line in after.splitlines()) == 3


def test_a_simulation_prints_every_planner(edge_agent, profile_path, trace_path, tmp_path):
    picture = tmp_path / "run.png"
    code, out, err = edge_agent(
        "simulate", "--profile", profile_path, "--trace", trace_path, "--json", "--png", picture
    )
    assert (code, err) == (0, "")
    seconds = {row["planner"]: row["seconds_per_100_steps"] for row in json.loads(out)}
    assert list(seconds) == ["accurate", "greedy", "jointdnn", "edge-only", "best-fixed"]
    assert all(0 < value < 1000 for value in seconds.values())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_simulation_in_words_is_a_table(edge_agent, profile_path, trace_path):
    code, out, _ = edge_agent(
        "simulate", "--profile", profile_path, "--trace", trace_path, "--planner", "jointdnn", "--downlink", "9mbit"
    )
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["planner", "jointdnn"]


def test_a_profile_without_edge_only_leaves_that_planner_out(edge_agent, profile_path, trace_path):
    profile_path.write_text(profile_to_json(small_profile(edge_seconds=(None, 1.0, 2.0, 3.0, None))))
    simulate = ("simulate", "--profile", profile_path, "--trace", trace_path, "--json")
    code, out, _ = edge_agent(*simulate)
    assert code == 0
    assert "edge-only" not in out
    code, _, err = edge_agent(*simulate, "--planner", "edge-only")
    assert code == ExitCode.PLAN
    assert err.count("\n") == 1


def test_no_row_of_a_simulation_has_what_is_forbidden(edge_agent, profile_path, trace_path):
    profile_path.write_text(profile_to_json(small_profile(edge_seconds=(None, 1.0, 2.0, 3.0, 0.01))))
    simulate = ("simulate", "--profile", profile_path, "--trace", trace_path, "--json")
    found = {row["planner"]: row for row in json.loads(edge_agent(*simulate)[1])}
    assert {row["start"]["cut"] for row in found.values()} == {4}
    code, out, _ = edge_agent(*simulate, "--no-edge-only")
    rows = {row["planner"]: row for row in json.loads(out)}
    assert code == 0
    assert "edge-only" not in rows
    assert all(each["cut"] < 4 for row in rows.values() for each in (row["start"], *row["switches"]))


@pytest.mark.parametrize("link", [("plan", *PLAN), ("simulate", "--trace", "trace.csv")])
def test_a_planner_that_is_forbidden_is_refused(edge_agent, profile_path, link):
    asked = ("--profile", profile_path, "--planner", "edge-only", "--no-edge-only")
    code, out, err = edge_agent(*link, *asked)
    assert (code, out) == (ExitCode.PLAN, "")
    assert err == "edge-agent: --planner edge-only plans what --no-edge-only forbids; leave one of them out\n"


def test_a_planner_that_nobody_has_is_refused_with_those_that_are_there(edge_agent, profile_path, monkeypatch):
    def refused(planner):
        code, out, err = edge_agent("plan", "--profile", profile_path, *PLAN, "--planner", planner)
        assert (code, out) == (ExitCode.USAGE, "")
        return " ".join(err.replace("│", " ").split())

    assert "there is no planner 'luck'; there are accurate, greedy, best, hiertrain, jointdnn" in refused("luck")
    assert "not installed" not in refused("luck")
    monkeypatch.setattr(installed, "entry_points", lambda **_: ())
    assert "others come with the benchmarks of a checkout, which are not installed here" in refused("edge-only")


def test_a_plan_searches_what_the_engine_of_a_run_does(edge_agent, profile_path):
    assert edge_agent("plan", "--profile", profile_path, *PLAN) == edge_agent(
        "plan", "--profile", profile_path, *PLAN, "--bits", ",".join(map(str, EngineSection().bits))
    )
    for uplink in ("1mbit", "8mbit", "64mbit", "1000mbit"):
        _, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, "--uplink", uplink)
        planned, rates = json.loads(out), Rates(float(uplink[:-4]) * 1e6, 50e6)
        begun = first_layout(*asked(small_profile(), rates, SearchSpace(EngineSection().bits)))
        is_begun = (begun.tiles[0].stop, (*begun.bits, 32)[0], begun.staleness) == tuple(
            planned[each] for each in ("cut", "bits", "staleness")
        )
        said = f"a run begins with {begun}"
        assert is_begun != any(said in note for note in planned["notes"])


def test_a_plan_gives_up_no_bits_and_no_steps_for_a_gain_that_nobody_notices(edge_agent, profile_path):
    """At 10 Mbit/s up, encoding to 8 bits saves half a percent of the device's computing time, and K = 3 hides the rest."""
    profile = small_profile(
        edge_seconds=(None, 1.0, 9.0, 9.0, 9.0),
        cloud_seconds=(None, 0.001, 0.001, 0.001, 0.0),
        feature_bytes=(None, 1e4, 1e4, 1e4, None),
        gradient_bytes=(None, 1e3, 1e3, 1e3, None),
        encode=Linear(0.0, 0.0),
    )
    profile_path.write_text(profile_to_json(profile))
    asked = ("plan", "--profile", profile_path, *PLAN, "--bits", "2,8,32")
    exact, fast = (json.loads(edge_agent(*asked, *more)[1]) for more in ((), ("--planner", "greedy")))
    assert (exact["cut"], exact["bits"], exact["staleness"]) == (1, 32, 0)
    assert fast["bits"] == 2 or fast["staleness"] > 0
    assert exact["seconds_per_step"] <= 1.02 * fast["seconds_per_step"]
    (note,) = [note for note in exact["notes"] if "more bits and a smaller K come first" in note]
    assert "--planner greedy" in note
    assert not any("come first" in note for note in fast["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--uplink", "0mbit"), "--uplink"),
        (("--uplink", "10"), "--uplink"),
        (("--downlink", "-5mbit"), "--downlink"),
        (("--downlink", "nanmbit"), "--downlink"),
        (("--from-cut", "5"), "from 1 to 4"),
        (("--from-cut", "0"), "from 1 to 4"),
        (("--cut", "4", "--no-edge-only"), "from 1 to 3"),
        (("--cut", "0"), "from 1 to 4"),
        (("--round-trip", "40"), "--round-trip"),
        (("--round-trip", "-40ms"), "--round-trip"),
        (("--staleness", "-1"), "staleness"),
        (("--horizon", "0"), "horizon"),
        (("--bits", "9"), "bit widths"),
        (("--bits", ""), "--bits"),
        (("--bits", "8,many"), "--bits"),
        (("--cut", "2,3"), "the cut is 2, 3"),
        (("--batch", "4"), "--batch is for three tiers"),
        (("--planner", "best"), "--planner is best; the planners of two workers are accurate, greedy"),
        (("--profile", "absent.json"), "absent.json"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_one_sentence(edge_agent, profile_path, arguments, said):
    code, out, err = edge_agent("plan", "--profile", profile_path, *PLAN, *arguments)
    assert (code, out) == (ExitCode.PLAN, "")
    assert err.startswith("edge-agent: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    "broken",
    [
        {"workers": [{"name": "edge", "replayed": [[0, 1, -2.0]]}]},
        {"workers": [{"name": "edge", "replayed": [[0, 1, float("nan")]]}]},
        {"workers": [{"name": "edge", "replayed": [[0, 5, 1.0]]}]},
        {"feature_bytes": [None, 1.0, float("inf"), 3.0, None]},
        {"gradient_bytes": [None, 1.0]},
        {"edge_seconds": [None] * 5},
        {"min_bits": [8, 8, 33, 8, 8]},
        {"max_staleness": -1},
        {"blocks": []},
        {"encode": 5},
        {"schema": "isthmus.profile/v2"},
    ],
)
def test_a_broken_profile_is_refused_by_name(edge_agent, profile_path, trace_path, broken):
    profile_path.write_text(json.dumps(PAIR_FILE | broken))
    for arguments in (
        ("plan", "--profile", profile_path, *PLAN),
        ("simulate", "--profile", profile_path, "--trace", trace_path),
    ):
        code, out, err = edge_agent(*arguments)
        assert (code, out) == (ExitCode.PLAN, "")
        assert err.startswith(f"edge-agent: {profile_path}: ")
        assert err.count("\n") == 1
        assert next(iter(broken)) in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--downlink-trace", "absent.csv"), "absent.csv"),
        (("--seconds", "0"), "above 0"),
        (("--seconds", "nan"), "above 0"),
        (("--round-trip", "-1ms"), "--round-trip"),
        (("--downlink", "0mbit"), "--downlink"),
        (("--downlink", "1mbit", "--downlink-trace", "x"), "twice"),
        (("--planner", "best"), '"best"'),
        (("--trace-run", "2"), "5G"),
    ],
)
def test_a_simulation_that_cannot_be_run_is_refused_in_one_sentence(
    edge_agent, profile_path, trace_path, arguments, said
):
    code, out, err = edge_agent("simulate", "--profile", profile_path, "--trace", trace_path, *arguments)
    assert (code, out) == (ExitCode.PLAN, "")
    assert err.count("\n") == 1
    assert said in err


def test_an_empty_trace_is_refused(edge_agent, profile_path, trace_path):
    trace_path.write_text("")
    code, _, err = edge_agent("simulate", "--profile", profile_path, "--trace", trace_path)
    assert code == ExitCode.PLAN
    assert err == f"edge-agent: {trace_path}: the trace is empty; it needs one line or more\n"


GROUP_PLAN = ("plan", "--uplink", "10mbit", "--downlink", "50mbit", "--members")


def test_a_group_is_compared_with_one_device(edge_agent):
    profile = ROOT / "edge_agent" / "demo" / "profile.json"
    code, out, err = edge_agent(*GROUP_PLAN, 2, "--profile", profile, "--json")
    assert (code, err) == (0, "")
    printed, plans = json.loads(out)["ranked"], group_plans(load_profile(profile), AT, 2)
    assert [
        (one.get("members"), one["cut"], one["seconds_per_step"], one["samples_per_second"]) for one in printed
    ] == [(plan.members, plan.blocks_here, plan.seconds_per_step, plan.samples_per_second) for plan in plans]
    code, out, _ = edge_agent(*GROUP_PLAN, 2, "--profile", profile)
    assert code == 0
    assert [line.partition("  ")[0].strip() for line in out.splitlines()[1:]] == [
        "one device" if plan.members is None else "group of 2" for plan in plans
    ]
    assert out.splitlines()[1].startswith("one device")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((0, "--profile", "edge_agent/demo/profile.json"), "the group has 0 members; it must have 1 to 1024"),
        ((2, "--profile", "edge_agent/demo/layers.json"), "no times of workers are in it"),
        (
            (2, "--profile", "edge_agent/demo/chain.json"),
            "a group is planned with a profile of a device and one trainer",
        ),
        (
            (2, "--profile", "edge_agent/demo/profile.json", "--bits", "8"),
            "--bits says nothing about a group; leave it out",
        ),
    ],
)
def test_a_group_that_cannot_be_planned_is_refused_in_one_sentence(edge_agent, monkeypatch, given, sentence):
    monkeypatch.chdir(ROOT)
    code, out, err = edge_agent(*GROUP_PLAN, *given)
    assert (code, out) == (ExitCode.PLAN, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_a_group_needs_the_rates_of_its_link(edge_agent):
    code, out, err = edge_agent("plan", "--profile", ROOT / "edge_agent" / "demo" / "profile.json", "--members", 2)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "give --uplink and --downlink" in err
