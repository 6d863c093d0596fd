"""`edge-agent plan` of three tiers as a user meets it: its output and its refusals."""

import json

import pytest

from benchmarks.tiers.phases import phases_of
from edge_agent.planner_names import TIER_PLANNER_NAMES
from edge_agent.planning import Question, SearchSpace, parse_profile, planned
from shared.errors import ExitCode
from shared.placement import parse_placement
from tests.support.planning.tiers import NAMES, tiers_document

DOCUMENT = tiers_document(4, 6, seed=3, codecs=True)
PERMITTED = ("--inputs-to", "near", "--inputs-to", "gpu")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


@pytest.fixture
def plan(edge_agent, path):
    def run(*arguments):
        code, out, err = edge_agent("plan", "--profile", path, "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_a_plan_prints_the_fields_that_are_promised(plan):
    printed = plan("--bits", "8,32", "--staleness", "1")
    placement = parse_placement(printed["placement"], "printed", 4, 6)
    assert (placement.workers, placement.staleness) == (NAMES, 1)
    assert set(printed["worker_seconds"]) <= set(NAMES)
    assert {tuple(link["between"]) for link in printed["link_seconds"]} <= {
        tuple(each["between"]) for each in DOCUMENT["links"]
    }
    assert printed["seconds_per_step"] >= max(printed["worker_seconds"].values()) * (1 - 1e-9)


@pytest.mark.parametrize("permitted", [(), PERMITTED], ids=["inputs stay", "inputs go"])
def test_no_planner_is_better_than_the_best(plan, edge_agent, path, permitted):
    best = plan(*permitted)
    for planner in TIER_PLANNER_NAMES:
        code, out, err = edge_agent("plan", "--profile", path, "--json", "--planner", planner, *permitted)
        if code:
            assert (code, permitted) == (ExitCode.PLAN, ()), err
            assert planner in ("jalad", "all-edge", "all-cloud")
            assert "--inputs-to" in err
        else:
            assert json.loads(out)["seconds_per_step"] >= best["seconds_per_step"] * (1 - 1e-9), planner


def test_hiertrain_has_the_fewest_seconds_in_phases():
    question = Question(parse_profile(DOCUMENT, "tiers"), SearchSpace(inputs_to=frozenset(NAMES[1:])))
    _, least = phases_of(question, planned(question, "hiertrain").layout)
    for planner in ("best", "jointdnn", "jointdnn+", "all-edge", "all-cloud"):
        division, seconds = phases_of(question, planned(question, planner).layout)
        if division.before in (0, 4):
            assert seconds >= least * (1 - 1e-9), planner


def test_the_planners_of_one_tier_have_all_blocks_there(plan):
    for planner, worker in (("all-device", "edge"), ("all-edge", "near"), ("all-cloud", "gpu")):
        printed = plan(*PERMITTED, "--planner", planner)
        (tile,) = printed["placement"]["tiles"]
        assert tile == {"worker": worker, "blocks": [0, 4], "samples": [0, 6]}


def test_placements_cost_what_their_plan_costs_and_the_fastest_comes_first(plan, edge_agent, path, tmp_path):
    plans = [plan(*PERMITTED, "--planner", planner) for planner in TIER_PLANNER_NAMES]
    lines = tmp_path / "placements.jsonl"
    lines.write_text("\n\n".join(json.dumps(each["placement"]) for each in plans))
    code, out, err = edge_agent("plan", "--profile", path, "--json", "--placements", lines, *PERMITTED)
    assert (code, err) == (0, "")
    ranked = json.loads(out)["ranked"]
    seconds = {one["name"]: one["seconds_per_step"] for one in ranked}
    assert list(seconds.values()) == sorted(seconds.values())
    assert seconds == {
        f"line {2 * place + 1}": pytest.approx(each["seconds_per_step"]) for place, each in enumerate(plans)
    }


def test_another_batch_is_planned_with_the_same_times(plan):
    tiles = plan("--batch", "3")["placement"]["tiles"]
    assert max(end for tile in tiles for end in tile["samples"]) == 3


def test_a_plan_is_told_in_words(edge_agent, path):
    code, out, err = edge_agent("plan", "--profile", path, "--planner", "hiertrain", *PERMITTED)
    assert (code, err) == (0, "")
    assert " s a step\n" in out
    assert " on samples [" in out or "blocks [" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--inputs-to", "moon"), "--inputs-to names 'moon'; the trainers of the profile are near, gpu"),
        (("--planner", "accurate"), "--planner is accurate; the planners of three tiers are best, hiertrain"),
        (("--planner", "all-cloud"), "all-cloud sends raw samples to a trainer that may not have them"),
        (("--horizon", "10"), "--horizon is for two workers; leave it out"),
        (("--batch", "0"), "the batch size is 0; it must be 1 or more"),
        (("--staleness", "-1"), "the staleness is -1; it must be 0 or more"),
        (("--bits", "4"), "the profile has no codec of 4 bits; its codecs have 8, 32"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(edge_agent, path, arguments, sentence):
    code, out, err = edge_agent("plan", "--profile", path, *arguments)
    assert (code, out) == (ExitCode.PLAN, "")
    assert sentence in err


def tile(worker, blocks, samples):
    return {"worker": worker, "blocks": blocks, "samples": samples}


SHARED = [tile("edge", [0, 1], [0, 6]), tile("near", [1, 4], [0, 2]), tile("gpu", [1, 4], [2, 6])]
OWNERS = {str(block): "gpu" for block in range(1, 4)}


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"tiles": [tile("gpu", [0, 4], [0, 6])]}, ExitCode.CONFIG, "privacy.inputs_to"),
        ({"tiles": [*SHARED[:2], tile("gpu", [1, 4], [6, 2])]}, ExitCode.CONFIG, "must hold at least one sample"),
        ({"tiles": [*SHARED[:2], tile("gpu", [1, 4], [2, -6])]}, ExitCode.CONFIG, "samples of a tile is -6"),
        ({"workers": ["edge", "near", "gpu", "moon"]}, ExitCode.PLAN, "the workers are edge, near, gpu, moon"),
        (
            {"codecs": [{"from": "edge", "to": "gpu", "cargo": "feature", "codec": "uniform4"}]},
            ExitCode.PLAN,
            "nothing is known of codec 'uniform4'",
        ),
    ],
)
def test_a_placement_that_may_not_be_is_refused_with_its_line(edge_agent, path, tmp_path, changes, code, sentence):
    good = {"schema": "isthmus.placement/v1", "workers": [*NAMES], "tiles": SHARED, "owners": OWNERS}
    lines = tmp_path / "placements.jsonl"
    lines.write_text(f"{json.dumps(good)}\n{json.dumps(good | changes)}\n")
    found, out, err = edge_agent("plan", "--profile", path, "--placements", lines, "--json")
    assert (found, out) == (code, "")
    assert "line 2" in err or code == ExitCode.PLAN
    assert sentence in err
    assert "Traceback" not in err


def test_a_file_without_a_placement_is_refused(edge_agent, path, tmp_path):
    lines = tmp_path / "placements.jsonl"
    lines.write_text("\n\n")
    code, out, err = edge_agent("plan", "--profile", path, "--placements", lines)
    assert (code, out) == (ExitCode.PLAN, "")
    assert err == f"edge-agent: {lines}: there is no placement; it needs one a line\n"


def test_a_part_below_the_fewest_samples_of_a_block_is_refused(edge_agent, tmp_path):
    document = tiers_document(4, 6, seed=3)
    for block in document["blocks"]:
        block["min_samples"] = 3
    path, lines = tmp_path / "tiers.json", tmp_path / "placements.jsonl"
    path.write_text(json.dumps(document))
    lines.write_text(
        json.dumps({"schema": "isthmus.placement/v1", "workers": [*NAMES], "tiles": SHARED, "owners": OWNERS})
    )
    code, _, err = edge_agent("plan", "--profile", path, "--placements", lines)
    assert code == ExitCode.CONFIG
    assert "line 1: placement: " in err


def test_traces_cannot_be_replayed(edge_agent, path, tmp_path):
    code, _, err = edge_agent("simulate", "--profile", path, "--trace", tmp_path / "any.csv")
    assert code == ExitCode.PLAN
    assert "a profile of three tiers is planned with edge-agent plan" in err


def test_a_profile_of_two_workers_refuses_what_only_three_tiers_have(edge_agent, tmp_path):
    from edge_agent.planning import profile_to_json
    from tests.support.planning.cases import small_profile

    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(small_profile()))
    link = ("--uplink", "10mbit", "--downlink", "10mbit")
    for arguments, sentence in (
        (("--batch", 4), "--batch is for three tiers"),
        (("--planner", "best"), "--planner is best; the planners of two workers are accurate"),
    ):
        code, _, err = edge_agent("plan", "--profile", path, *link, *arguments)
        assert code == ExitCode.PLAN
        assert sentence in err
