"""`edge-agent plan` and `edge-agent simulate` as a user meets them: what they print, and how they refuse."""

import json
import sys

import pytest

from edge_agent.main import main
from shared.errors import ExitCode
from shared.planning import Rates, SearchSpace, greedy, jointdnn, profile_to_json
from tests.unit.planning_cases import small_profile

PLAN = ("--uplink", "10mbit", "--downlink", "50mbit", "--json")
AT = Rates(10e6, 50e6)


@pytest.fixture
def profile_path(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(small_profile()))
    return path


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("second,bytes per second\n" + "".join(f"{i},{500_000 * (1 + i // 30 % 3)}\n" for i in range(120)))
    return path


@pytest.fixture
def edge_agent(monkeypatch, capsys):
    """Runs the entry point; returns its exit code and what it printed on both streams."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edge-agent", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


def test_a_plan_prints_the_fields_that_are_promised(edge_agent, profile_path):
    code, out, err = edge_agent("plan", "--profile", profile_path, *PLAN, "--from-cut", 1, "--staleness", 2)
    assert (code, err) == (0, "")
    printed = json.loads(out)
    expected = greedy(small_profile(), AT, SearchSpace(staleness=2), from_cut=1)
    assert printed == {
        "cut": expected.deployment.cut,
        "staleness": 2,
        "bits": expected.deployment.bits,
        "seconds_per_step": expected.seconds_per_step,
        "stage_seconds": list(expected.stage_seconds),
        "migration_seconds": expected.migration_seconds,
        "evaluated": expected.evaluated,
    }


def test_each_planner_can_be_asked(edge_agent, profile_path):
    def answer(*more):
        code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN, *more)
        assert code == 0
        return json.loads(out)

    serial = jointdnn(small_profile(), AT).deployment
    assert answer("--planner", "jointdnn")["cut"] == serial.cut
    assert answer("--planner", "edge-only")["cut"] == 4
    fixed = answer("--planner", "fixed", "--cut", "2", "--bits", "8", "--staleness", "1")
    assert (fixed["cut"], fixed["staleness"], fixed["bits"], fixed["evaluated"]) == (2, 1, 8, 1)
    assert answer("--bits", "4")["bits"] == 4
    slow = ("--uplink", "1kbit", "--downlink", "1kbit")
    assert answer(*slow)["cut"] == 3
    assert answer(*slow, "--allow-edge-only")["cut"] == 4


def test_a_plan_in_words_says_where_the_blocks_are(edge_agent, profile_path):
    code, out, _ = edge_agent("plan", "--profile", profile_path, *PLAN[:-1], "--from-cut", 1)
    assert code == 0
    assert "of 4 on the edge" in out
    assert "best of" in out


def test_a_simulation_prints_every_planner(edge_agent, profile_path, trace_path, tmp_path):
    picture = tmp_path / "run.png"
    code, out, err = edge_agent(
        "simulate", "--profile", profile_path, "--trace", trace_path, "--json", "--png", picture
    )
    assert (code, err) == (0, "")
    seconds = {row["planner"]: row["seconds_per_100_steps"] for row in json.loads(out)}
    assert list(seconds) == ["greedy", "jointdnn", "edge-only", "best-fixed", "clairvoyant"]
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--uplink", "0mbit"), "--uplink"),
        (("--uplink", "10"), "--uplink"),
        (("--downlink", "-5mbit"), "--downlink"),
        (("--downlink", "nanmbit"), "--downlink"),
        (("--from-cut", "5"), "from 1 to 4"),
        (("--from-cut", "0"), "from 1 to 4"),
        (("--cut", "4"), "from 1 to 3"),
        (("--cut", "0"), "from 1 to 3"),
        (("--staleness", "-1"), "staleness"),
        (("--horizon", "0"), "horizon"),
        (("--bits", "9"), "bit widths"),
        (("--bits", ""), "--bits"),
        (("--bits", "8,many"), "--bits"),
        (("--planner", "fixed"), "--cut"),
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
        {"edge_seconds": [None, 1.0, -2.0, 3.0, 5.0]},
        {"edge_seconds": [None, 1.0, float("nan"), 3.0, 5.0]},
        {"feature_bytes": [None, 1.0, float("inf"), 3.0, None]},
        {"cloud_seconds": [None, 1.0]},
        {"edge_seconds": [None] * 5},
        {"min_bits": [8, 8, 9, 8, 8]},
        {"max_staleness": -1},
        {"blocks": []},
        {"encode": 5},
        {"schema": "isthmus.profile/v2"},
    ],
)
def test_a_broken_profile_is_refused_by_name(edge_agent, profile_path, trace_path, broken):
    profile_path.write_text(json.dumps(json.loads(profile_path.read_text()) | broken))
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
        (("--trace", "absent.csv"), "absent.csv"),
        (("--seconds", "0"), "above 0"),
        (("--seconds", "nan"), "above 0"),
        (("--latency-ms", "-1"), "--latency-ms"),
        (("--downlink", "0mbit"), "--downlink"),
        (("--downlink", "1mbit", "--downlink-trace", "x"), "twice"),
        (("--planner", "best"), '"best"'),
        (("--trace-run", "2"), "5G"),
        (("--planner", "clairvoyant", "--png", "x.png"), "--png"),
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
