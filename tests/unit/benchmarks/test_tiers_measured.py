"""Blocks that sleep as a profile says, the profiles that can be measured so, and what is made of measurements."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.func import functional_call

from benchmarks.networks import WORKER, RandomImages, lasting
from benchmarks.support.report import Spread
from benchmarks.tiers import measured as tiers_measured
from benchmarks.tiers import sleeping
from benchmarks.tiers.convolutions import convolutions
from benchmarks.tiers.fewer import best_of_fewer
from benchmarks.tiers.links import SLEEPING, halves, halves_profile
from benchmarks.tiers.measured import Measured, check_line
from benchmarks.tiers.settings import BATCH, NAMES, SETTINGS, Setting, profile_of
from benchmarks.tiers.shares import COMPUTING, FLAGS
from benchmarks.tiers.shares import SETTINGS as SHARED
from benchmarks.tiers.sleeping import RandomVectors, SleepingBlock, flags_of, sleeping_blocks
from benchmarks.tiers.tables import errors_table, gains_table, overlap_table
from benchmarks.tiers.tried import FEWER, ONE_BEHIND, Tried, in_turn, kept_in, kept_with, placements_of
from edge_agent.config import EdgeConfig
from edge_agent.planner_names import BEST
from edge_agent.planning import MeasuredLink, conditions_of, costed, parts_of
from shared.config import load_config
from shared.errors import PlanError
from shared.placement import check_size
from tests.unit.edge_agent.planning.tiers.test_tiers_search import Costs, question_of

SMALL = profile_of((0.002, 0.001, 0.001), 40.0, 10.0, (24, 8, 32, 8), (20, 40, 4))


def texts(table):
    """Return the cells of a table by row."""
    return list(zip(*(list(column.cells) for column in table.columns), strict=True))


def measured(seconds, predicted, eq12=None):
    return Measured(Spread(seconds, seconds, seconds), predicted, eq12)


@pytest.mark.parametrize(("worker", "expected"), [("edge", (0.008, 0.016)), ("near", (0.004, 0.008)), ("", (0.0, 0.0))])
def test_a_block_sleeps_by_its_worker_and_its_samples(monkeypatch, worker, expected):
    lines = {
        name: {"forward": [[0.0, each]], "backward": [[0.0, 2 * each]]}
        for name, each in (("edge", 2e-3), ("near", 1e-3))
    }
    monkeypatch.setenv(WORKER, worker)
    lasted = []

    def lasting(seconds):
        lasted.append(seconds)
        return nullcontext()

    with patch.object(sleeping, "lasting", lasting):
        chain = sleeping_blocks([3], [5], lines)
        chain(torch.ones(4, 2)).sum().backward()
        assert lasted == pytest.approx(expected)
        chain.eval()(torch.ones(4, 2))
    assert lasted[2:] == [0.0], "judging takes no time"


@pytest.mark.parametrize(("worked", "slept"), [(0.25, 0.75), (2.0, 0.0)])
def test_what_lasts_sleeps_for_what_its_work_leaves(monkeypatch, worked, slept):
    clock = iter((5.0, 5.0 + worked))
    asleep = []
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("time.sleep", asleep.append)
    with lasting(1.0):
        pass
    assert asleep == [slept]


@pytest.mark.parametrize(("there", "floats"), [(4, 4), (4, 11), (11, 4), (3, 9)])
def test_the_gradients_of_a_block_are_those_of_its_arithmetic(there, floats):
    block = SleepingBlock(floats, 5, (0.0, 0.0), (0.0, 0.0)).double()
    torch.nn.init.normal_(block.weights)
    value = torch.randn(2, there, dtype=torch.float64, requires_grad=True)

    def computed(value, weights):
        return functional_call(block, {"weights": weights}, value)

    assert torch.autograd.gradcheck(computed, (value, block.weights))
    resized = value.repeat(1, 1 + floats // there)[:, :floats] + block.weights.mean()
    assert torch.equal(block(value), resized)


def test_the_model_has_the_features_and_the_weights_of_the_profile(monkeypatch):
    monkeypatch.delenv(WORKER, raising=False)
    config = load_config(EdgeConfig, None, flags_of(SMALL), environ={})
    chain, feature = sleeping_blocks(**config.model.kwargs), torch.ones(2, 6)
    assert config.data.ahead == SMALL.samples_ahead
    for block, floats, weights in zip(chain, (2, 8, 2), (5, 10, 1), strict=True):
        feature = block(feature)
        assert feature.shape == (2, floats)
        assert sum(weight.numel() for weight in block.parameters()) == weights
    feature.sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in chain.parameters())
    data = RandomVectors(**config.data.train.kwargs)
    assert (len(data), data[0][0].shape) == (BATCH * 10_000, (6,))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_of_machines_in_a_line(name):
    check_line(SETTINGS[name].profile())


def test_a_profile_of_other_links_than_a_line_is_refused():
    link = SMALL.links["edge", "gpu"]
    for changed, key in (
        (link._replace(uplink=2 * link.uplink), "up 2e"),
        (link._replace(downlink=0.5 * link.downlink), "down 5e"),
        (link._replace(round_trip_seconds=0.001), "round_trip_seconds 0.001"),
    ):
        assert isinstance(changed, MeasuredLink)
        with pytest.raises(PlanError, match=f"the profile has {key}.* between edge and gpu; through near it is"):
            check_line(SMALL.with_links({("edge", "gpu"): changed}))
    with pytest.raises(PlanError, match="edge-gpu and near-gpu share no segment"):
        check_line(replace(SMALL, shared_segments=SMALL.shared_segments[:1]))
    with pytest.raises(PlanError, match="the first worker of the profile is 'device'; it must be 'edge'"):
        check_line(SMALL.named(("device", "near", "gpu")))


@pytest.mark.parametrize("seed", [2, 3])
def test_the_best_of_fewer_workers_is_the_best_of_those_that_leave_one_out(seed):
    question = question_of(seed, blocks=3, batch_size=4)
    question = replace(question, space=replace(question.space, bits=(32,)))
    costs = Costs(question)
    seconds = []
    for row in range(costs.every.rows):
        division = costs.every.division(row, question.profile.names)
        computing = {division.original, *(["edge"] if division.before else [])}
        computing |= {division.short} if division.short_samples else set()
        computing |= {division.long} if division.long_samples else set()
        if len(computing) < 3:
            seconds.append(costs.seconds(row))
    assert best_of_fewer(question.profile, question.space.inputs_to).seconds == min(seconds)


@pytest.mark.full
def test_what_is_tried_in_a_setting_is_tried_once_and_begins_with_the_best():
    setting = Setting("", (0.002, 0.001, 0.0005), 40.0, 20.0)
    tried = placements_of(setting.profile(), setting.inputs_to)
    assert len(set(map(repr, tried.values()))) == len(tried)
    seconds = {
        name: costed(tiers_measured.question_of(setting.profile(), each.staleness), each).seconds_per_step
        for name, each in tried.items()
    }
    assert seconds[BEST] == min(seconds[name] for name in tried if name != ONE_BEHIND)


@pytest.mark.parametrize("ways", [1.0, 2.0])
def test_the_exchange_takes_as_long_as_computing(ways):
    profile = halves_profile(ways)
    placement = halves(len(profile))
    check_size(placement)
    question = tiers_measured.question_of(profile)
    found = parts_of(question, costed(question, placement).layout, conditions_of(profile))
    (exchange,) = {link: both for link, both in found.links.items() if both[1]}.values()
    assert exchange[1] * ways == pytest.approx(found.workers["edge"], rel=0.2)


def test_measurements_are_kept_as_they_are_made_and_replace_older_ones(tmp_path):
    old, new = (Tried("stay", BEST, Measured(Spread(each, 0.9, 1.1), 1.05, None)) for each in (1.0, 1.02))
    other, path = Tried("stay", FEWER, measured(2.0, 2.1)), tmp_path / "kept.jsonl"
    assert kept_in(path) == []

    def measuring():
        yield old
        assert kept_in(path) == [old], "it is there before the next one is measured"
        yield other

    assert kept_with(path, measuring()) == [old, other] == kept_in(path)
    assert kept_with(path, [new]) == [new, other] == kept_in(path)
    assert kept_with(None, [new]) == [new]


def test_placements_take_turns_and_are_told_in_the_last():
    class Running:
        def stretches(self, placement, _seconds):
            asked.append(placement)
            return [float(len(asked))]

        def measured(self, placement, stretches):
            return placement, stretches

    asked = []
    found = [(one.name, *one.found) for one in in_turn("stay", Running(), {"a": 1, "b": 2}, 5.0, 2)]
    assert asked == [1, 2, 1, 2]
    assert found == [("a", 1, [1.0, 3.0]), ("b", 2, [2.0, 4.0])]


def test_goals_that_are_missed_are_said_to_be():
    good, bad = Tried("stay", BEST, measured(1.0, 1.04, 2.0)), Tried("stay", FEWER, measured(1.0, 1.2))
    assert texts(errors_table([good], SLEEPING))[0] == ("simulator", "1", "4.0%", "4.0%", "")
    assert texts(errors_table([good, bad], SLEEPING))[0][-1] == "MISSED"
    assert texts(errors_table([good, bad], SLEEPING))[1][:3] == ("Eq. 12", "1", "100.0%")
    assert texts(overlap_table([Tried("overlap", "each way", measured(1.0, 0.95))]))[0][-1] == ""
    assert texts(overlap_table([Tried("overlap", "each way", measured(1.0, 0.9))]))[0][-1] == "MISSED"


def test_blocks_that_compute_are_held_to_goals_of_their_own():
    tried = [Tried("stay", BEST, measured(1.0, 1.15, 2.0)), Tried("stay", FEWER, measured(1.08, 1.4))]
    assert texts(errors_table(tried[:1], COMPUTING))[0][-1] == "MISSED"
    assert texts(errors_table([Tried("stay", BEST, measured(1.0, 0.92, 2.0))], COMPUTING))[0][-1] == ""
    assert (texts(gains_table(tried, COMPUTING))[0][-1], texts(gains_table(tried, SLEEPING))[0][-1]) == ("", "MISSED")


def test_the_network_that_computes_is_trained_on_its_images():
    trainers = "trainers=[" + ", ".join(f'{{name="{name}", address="127.0.0.1:1"}}' for name in NAMES[1:]) + "]"
    config = load_config(EdgeConfig, None, [trainers, *FLAGS], environ={})
    images, labels = zip(*(RandomImages(2)[index] for index in range(2)), strict=True)
    scores = convolutions(**config.model.kwargs)(torch.stack(images))
    nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
    assert scores.shape == (2, 10)
    assert config.privacy.inputs_to == ("near", "gpu")


@pytest.mark.parametrize("name", SHARED)
def test_shares_leave_a_part_of_two_cores(name):
    assert sum(SHARED[name].shares) <= 1.5


@pytest.mark.parametrize(
    ("best", "fewer", "verdict"),
    [
        ((0.8, 0.8), (1.0, 1.0), ""),
        ((0.92, 0.8), (1.0, 1.0), "MISSED"),
        ((1.04, 0.95), (1.0, 1.0), ""),
        ((1.06, 0.95), (1.0, 1.0), "MISSED"),
    ],
)
def test_three_beat_two_by_what_is_predicted_or_are_near_the_best(best, fewer, verdict):
    tried = [Tried("stay", BEST, measured(*best)), Tried("stay", FEWER, measured(*fewer))]
    assert texts(gains_table(tried, SLEEPING))[0][-1] == verdict
