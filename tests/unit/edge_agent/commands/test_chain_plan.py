"""`edge-agent plan` of a chain as a user meets it: its output and its refusals."""

import json
from itertools import pairwise

import pytest

from edge_agent.planner_names import EXACTNESS_MARGIN
from edge_agent.planning import Question, SearchSpace, best, best_order, conditions_of, loads_of, most_exact
from edge_agent.planning.profile import parse_profile
from shared.errors import ExitCode
from tests.support.planning.chains import chain_document

DOCUMENT = chain_document(6, 3, seed=42)
CHAIN = parse_profile(DOCUMENT, "chain")


def parts_of(layout):
    """Return the seconds of the stages, and of each link up and down."""
    loads, at = loads_of(CHAIN, [layout]), conditions_of(CHAIN)
    stages, carried = loads.worker_seconds(at), loads.direction_seconds(at)
    places = [CHAIN.names.index(worker) for worker in layout.workers]
    links = [[float(carried[hop][0]) for hop in ((near, far), (far, near))] for near, far in pairwise(places)]
    return [float(stages[place][0]) for place in places], links


@pytest.fixture
def chain_path(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def test_a_plan_prints_the_fields_that_are_promised(edge_agent, chain_path):
    code, out, err = edge_agent("plan", "--profile", chain_path, "--staleness", 2, "--bits", "2,4,32", "--json")
    assert (code, err) == (0, "")
    printed, expected = json.loads(out), most_exact(Question(CHAIN, SearchSpace((2, 4, 32), 2)))
    stages, links = parts_of(expected.layout)
    workers = list(expected.layout.workers)
    assert printed == {
        "workers": workers,
        "cuts": list(expected.layout.cuts),
        "bits": list(expected.layout.bits),
        "staleness": 2,
        "seconds_per_step": expected.seconds_per_step,
        "samples_per_second": expected.samples_per_second,
        "placement": printed["placement"],
        "worker_seconds": dict(zip(workers, stages, strict=True)),
        "link_seconds": [
            {"between": list(link), "up": up, "down": down}
            for link, (up, down) in zip(pairwise(workers), links, strict=True)
        ],
        "migration_seconds": 0.0,
        "evaluated": 1,
        "notes": printed["notes"],
    }
    assert printed["placement"]["workers"] == ["s0", "s1", "s2"]


def test_without_staleness_the_slowest_part_alone_counts(edge_agent, chain_path):
    _, out, _ = edge_agent("plan", "--profile", chain_path, "--json")
    printed = json.loads(out)
    links = [link[way] for link in printed["link_seconds"] for way in ("up", "down")]
    assert printed["seconds_per_step"] == max([*printed["worker_seconds"].values(), *links])


def test_another_order_is_tried_where_any_may_be(edge_agent, chain_path):
    code, out, _ = edge_agent("plan", "--profile", chain_path, "--staleness", 1, "--order", "any", "--json")
    space = SearchSpace((8, 32), 1)
    ordered = best_order(Question(CHAIN, space))
    expected = best(Question(ordered, space))
    assert code == 0
    assert json.loads(out)["placement"]["workers"] == list(ordered.names)
    assert expected.seconds_per_step < 0.99 * best(Question(CHAIN, space)).seconds_per_step
    most = (1 + EXACTNESS_MARGIN) * expected.seconds_per_step
    assert expected.seconds_per_step <= json.loads(out)["seconds_per_step"] <= most


def test_the_words_say_which_stage_has_what(edge_agent, chain_path):
    code, out, _ = edge_agent("plan", "--profile", chain_path, "--staleness", 2)
    layout = most_exact(Question(CHAIN, SearchSpace((8, 32), 2))).layout
    (first, second), (stages, links) = layout.cuts, parts_of(layout)
    assert code == 0
    assert f"  s1: blocks [{first}, {second}), {stages[1]:.4g} s\n" in out
    assert f"    {layout.bits[1]} bits up {links[1][0]:.4g} s" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from-cut", "2"), "--from-cut is for two workers"),
        (("--inputs-to", "s1"), "--inputs-to is for three tiers"),
        (("--cut", "2"), "the cuts are 2; with 6 blocks on 3 stages there must be 2"),
        (("--planner", "hiertrain"), "--planner is hiertrain; the planners of a chain are accurate, best"),
        (("--bits", "2,x"), '--bits is "2,x"'),
        (("--staleness", "-1"), "the staleness is -1"),
    ],
)
def test_options_without_a_meaning_for_a_chain_are_refused(edge_agent, chain_path, arguments, sentence):
    code, out, err = edge_agent("plan", "--profile", chain_path, *arguments)
    assert (code, out) == (ExitCode.PLAN, "")
    assert sentence in err


def test_a_link_that_is_given_counts_in_place_of_the_measured_one(edge_agent, chain_path):
    asked = ("plan", "--profile", chain_path, "--staleness", 2, "--json", "--cut", "2,4", "--bits", "32")
    known, slow = (
        json.loads(edge_agent(*asked, *more)[1]) for more in ((), ("--uplink", "1kbit", "--downlink", "1kbit"))
    )
    assert (known["cuts"], slow["cuts"]) == ([2, 4], [2, 4])
    assert slow["link_seconds"][0]["up"] > known["link_seconds"][0]["up"]
    assert slow["link_seconds"][1:] == known["link_seconds"][1:]


def test_the_others_of_a_chain_are_worse_or_less_exact(edge_agent, chain_path):
    code, out, _ = edge_agent("plan", "--profile", chain_path, "--staleness", 2, "--explain", "--json")
    assert code == 0
    best_plan, *others = json.loads(out)["ranked"]
    for one in others:
        is_better = one["seconds_per_step"] < best_plan["seconds_per_step"] * (1 - 1e-9)
        assert is_better == (" faster" in one["reason"])


def test_of_more_workers_than_blocks_some_get_none(edge_agent, tmp_path):
    path = tmp_path / "short.json"
    path.write_text(json.dumps(chain_document(2, 3)))
    code, out, _ = edge_agent("plan", "--profile", path, "--json")
    assert code == 0
    assert 1 <= len(json.loads(out)["workers"]) <= 2


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), "--profile"),
        (("--profile",), "give --uplink and --downlink"),
    ],
)
def test_a_plan_needs_one_profile_and_of_two_workers_their_link(edge_agent, profile_path, names, sentence):
    code, _, err = edge_agent("plan", *(part for name in names for part in (name, profile_path)))
    assert code == ExitCode.USAGE
    assert sentence in err


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("second,mbit_per_second\n0,8\n60,2\n120,8\n")
    return path


def test_a_simulation_takes_a_trace_a_link(edge_agent, chain_path, trace_path):
    traces = ("--trace", trace_path, "--trace", trace_path)
    code, out, err = edge_agent("simulate", "--profile", chain_path, *traces, "--staleness", 2, "--json")
    assert (code, err) == (0, "")
    planned, followed, even = json.loads(out)
    assert (planned["planner"], followed["planner"], even["planner"]) == ("partition", "greedy", "even")
    assert planned["start"].keys() == {"workers", "cuts", "staleness", "bits"}
    assert followed["start"] == planned["start"]
    assert 0.0 < planned["seconds_per_100_steps"] < even["seconds_per_100_steps"]
    _, table, _ = edge_agent("simulate", "--profile", chain_path, *traces, "--planner", "even")
    assert "even" in table
    assert "partition" not in table


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--trace is given 1 times; there must be one for each of the links, 2"),
        (("--trace", "t.csv", "--seconds", "0"), "the run lasts 0.0 s; it must be above 0 and finite"),
        (("--round-trip", "1ms"), "--round-trip is for two workers"),
    ],
)
def test_a_simulation_refuses_what_does_not_fit_the_chain(edge_agent, chain_path, trace_path, arguments, sentence):
    more = [trace_path if each == "t.csv" else each for each in arguments]
    code, _, err = edge_agent("simulate", "--profile", chain_path, "--trace", trace_path, *more)
    assert code == ExitCode.PLAN
    assert sentence in err
