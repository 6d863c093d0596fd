"""The best division among three tiers: no bound is above a cost, and no division is better than the one that is found."""

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.planning import Question, SearchSpace, best, conditions_of, simulated_seconds
from edge_agent.planning.families.tiers import family
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import layout_of
from edge_agent.planning.profile import parse_profile
from edge_agent.planning.profile_operations import coded, facts_of
from shared.errors import PlanError
from shared.placement import Permissions, check
from tests.support.crossed import thinned
from tests.support.planning.tiers import NAMES, tiers_document

COSTS = ((), ([0.02, 1e-7], [0.0, 1e-6], [0.003, 0.0]), ([0.01, 0.0],))
"""Costs of messages of some workers of their own."""


def question_of(seed: int, blocks: int = 5, batch_size: int = 12, staleness: int = 0, ahead: int = 0) -> Question:
    draw = random.Random(seed)
    bits = draw.choice(((32,), (8, 32)))
    document = tiers_document(blocks, batch_size, seed, codecs=len(bits) > 1)
    for worker, cost in zip(document["workers"], COSTS[seed % len(COSTS)], strict=False):
        worker["by_samples"]["message"] = cost
    profile = parse_profile(document, "tiers")
    inputs_to = frozenset(draw.choice(((), ("gpu",), NAMES[1:])))
    return Question(replace(profile, samples_ahead=ahead), SearchSpace(bits, staleness, inputs_to=inputs_to))


class Costs:
    """The bound and the cost of every division of a question."""

    def __init__(self, question: Question) -> None:
        self.question, self.at = question, conditions_of(question.profile)
        profile, staleness = question.profile, question.space.staleness
        choices = Choices(question)
        shares = range(1, profile.batch_size + 1)
        self.every = choices.listed(range(choices.first_cut, len(profile) + 1), shares)
        self.bounds = Bounds(profile, self.at, staleness).seconds(self.every)

    def seconds(self, row: int) -> float:
        profile, staleness = self.question.profile, self.question.space.staleness
        one = self.every.take(np.array([row]))
        layout = layout_of(one, NAMES, len(profile), profile.batch_size, staleness)
        return simulated_seconds(profile, coded(profile, layout), self.at)


@pytest.mark.first_case
@pytest.mark.parametrize("seed", range(6))
def test_no_bound_is_above_the_simulated_step(seed):
    costs = Costs(question_of(seed, staleness=seed % 3, ahead=2 * (seed % 2)))
    for row in np.random.default_rng(seed).choice(costs.every.rows, 25, replace=False):
        assert costs.bounds[row] <= costs.seconds(row) * (1 + 1e-9), costs.every.division(row, NAMES)


@pytest.mark.parametrize("seed", thinned(zip(range(100, 130))))
def test_no_bound_is_above_the_simulated_step_in_many_divisions(seed):
    costs = Costs(question_of(seed, staleness=seed % 3, ahead=seed % 4))
    for row in np.random.default_rng(seed).choice(costs.every.rows, 150, replace=False):
        assert costs.bounds[row] <= costs.seconds(row) * (1 + 1e-9), costs.every.division(row, NAMES)


@pytest.mark.first_case
@pytest.mark.parametrize("seed", [2, 3])
def test_the_best_is_the_best_of_all(seed):
    question = question_of(seed, blocks=3, batch_size=4)
    costs = Costs(question)
    found = family.search(question, costs.at)
    assert found.is_proved
    assert found.seconds_per_step == min(costs.seconds(row) for row in range(costs.every.rows))
    assert best(question).seconds_per_step == found.seconds_per_step


@pytest.mark.parametrize("seed", thinned(zip(range(200))))
def test_the_best_of_five_blocks_and_twelve_samples_is_the_best_of_all(seed):
    """Divisions whose bound, which is never above the cost, is above the best are counted without being simulated."""
    question = question_of(seed, ahead=2 * (seed % 2))
    costs = Costs(question)
    found = family.search(question, costs.at)
    rows = np.flatnonzero(costs.bounds <= found.seconds_per_step * (1 + 1e-9))
    others = np.random.default_rng(seed).choice(costs.every.rows, 20, replace=False)
    assert found.seconds_per_step == min(costs.seconds(row) for row in rows)
    assert all(costs.seconds(row) >= found.seconds_per_step for row in others)


@pytest.mark.slow
def test_a_deep_model_and_a_large_batch_take_few_simulations():
    question = question_of(1, blocks=34, batch_size=128)
    found = family.search(question, conditions_of(question.profile))
    assert found.evaluated <= family.LEAST_SIMULATED + family.BLOCKS_SIMULATED // 34
    assert not found.is_proved


def test_the_search_for_many_divisions_finds_what_trying_all_finds(monkeypatch):
    question = question_of(3, blocks=5, batch_size=12)
    at = conditions_of(question.profile)
    of_all = family.search(question, at)
    monkeypatch.setattr(family, "MOST_LISTED", 0)
    found = family.search(question, at)
    assert not found.is_proved
    assert found.seconds_per_step == pytest.approx(of_all.seconds_per_step, rel=0.01)


def test_nothing_may_be_chosen_where_neither_samples_nor_the_device_may():
    document = tiers_document(1, 4)
    question = Question(parse_profile(document, "tiers"), SearchSpace((32,), 0, allow_edge_only=False))
    with pytest.raises(PlanError, match="no division of 4 samples among edge, near, gpu may be chosen"):
        best(question)


def test_a_width_needs_a_codec():
    question = Question(parse_profile(tiers_document(2, 4), "tiers"), SearchSpace((8,), 0))
    with pytest.raises(PlanError, match="the profile has no codec of 8 bits; its codecs have 32"):
        best(question)


@pytest.mark.parametrize("inputs_to", [(), ("near",), NAMES[1:]])
@pytest.mark.parametrize("bits", [(32,), (8, 32)])
def test_every_division_that_may_be_chosen_is_a_placement_that_may_be(inputs_to, bits):
    document = tiers_document(4, 6, 5, codecs=True)
    document["blocks"][1]["reads_raw"] = True
    document["blocks"][3]["whole"] = True
    profile = parse_profile(document, "tiers")
    question = Question(profile, SearchSpace(bits, 0, inputs_to=frozenset(inputs_to)))
    choices = Choices(question)
    every = choices.listed(range(choices.first_cut, 5), range(1, 7))
    for row in np.random.default_rng(0).choice(every.rows, 400):
        layout = layout_of(every.take(np.array([row])), NAMES, 4, 6, 0)
        check(coded(profile, layout), facts_of(profile), Permissions(inputs_to=frozenset(inputs_to)))


def test_what_shows_raw_samples_and_what_is_not_divided_stays_whole():
    document = tiers_document(4, 6, 5)
    document["blocks"][1]["reads_raw"] = True
    document["blocks"][3]["whole"] = True
    question = Question(parse_profile(document, "tiers"), SearchSpace((32,), 0))
    choices = Choices(question)
    every = choices.listed(range(5), range(1, 7))
    assert every.before.min() == choices.first_cut == 2
    shared_last = (every.long_blocks == 4) & (every.long_samples > 0) & (every.long_samples < 6)
    assert every.rows
    assert not shared_last.any()
