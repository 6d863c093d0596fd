"""The layouts that are weighed: all of them where they are few, and otherwise those that searches find."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.flapping import random_case
from edge_agent.planning import (
    PROBE_SECONDS,
    Engine,
    Observation,
    Question,
    Rates,
    SearchSpace,
    best,
    best_order,
    conditions_of,
    loads_of,
    parse_profile,
    simulate,
    stacked,
)
from edge_agent.planning.engine import pool as pool_module
from edge_agent.planning.engine.generating import MOST_GENERATED, Search
from edge_agent.planning.families import chain, registry
from edge_agent.planning.families.registry import FAMILIES, listed, neighbours, permits
from shared.errors import PlanError
from tests.support.planning.chain_runs import BITS, ChainTraining, uniform_chain
from tests.support.planning.chains import all_layouts, chain_document

LARGE = uniform_chain(stages=4, blocks=24)


def chain_question(blocks: int, stages: int, seed: int, space: SearchSpace) -> tuple[dict, Question]:
    document = chain_document(blocks, stages, seed)
    return document, Question(replace(parse_profile(document, "chain"), max_staleness=3), space)


@given(st.integers(3, 6), st.sampled_from((1, 3)), st.integers(0, 10**6), st.booleans())
def test_all_layouts_of_a_small_chain_are_listed_and_are_what_may_be_chosen(blocks, stages, seed, alone):
    space = SearchSpace((4, 32), allow_edge_only=alone)
    document, question = chain_question(blocks, stages, seed, space)
    names = question.profile.names
    expected = {
        stacked(question.profile, [cut for cut, _ in path], staleness, bits, (names[0], *(names[n] for _, n in path)))
        for staleness in (0, 3)
        for _, path, bits in all_layouts(document, (4, 32), staleness)
        if path or alone or len(names) == 1
    }
    if not expected:
        return
    found = chain.listed(question)
    assert found is not None
    layouts, loads = found
    assert len(layouts) == len(set(layouts)) == len(loads)
    assert set(layouts) == expected
    assert all(permits(question, layout) for layout in layouts)


class Alone:
    """A family of the first worker alone, or one without any layout."""

    def __init__(self, refuses):
        self.refuses = refuses

    def is_for(self, _question):
        return True

    def listed(self, question):
        if self.refuses:
            raise PlanError("nothing of this kind")
        alone = stacked(question.profile, (len(question.profile),) * 2, 3, (32, 32))
        return [alone], loads_of(question.profile, [alone])

    def bounded(self, question, at):
        layouts, loads = self.listed(question)
        yield float(loads.seconds(at)[0]), layouts[0]

    def permits(self, _question, _layout):
        return False

    def neighbours(self, _question, _layout, _at):
        return iter(())


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_family_hides_no_layouts_of_another_and_repeats_none(place, refuses, monkeypatch):
    question = Question(replace(uniform_chain(), max_staleness=3), SearchSpace(BITS))
    layouts, loads = listed(question)
    found = best(question)
    families = [*FAMILIES.items()]
    families.insert(place * len(families), ("alone", Alone(refuses)))
    monkeypatch.setattr(registry, "FAMILIES", dict(families))
    again, loads_again = listed(question)
    assert (len(again), set(again)) == (len(layouts), set(layouts))
    at = conditions_of(question.profile)
    seconds = dict(zip(layouts, loads.seconds(at).tolist(), strict=True))
    assert [seconds[layout] for layout in again] == loads_again.seconds(at).tolist()
    assert best(question) == found


def test_where_no_family_has_any_layout_the_first_says_why(monkeypatch):
    question = Question(uniform_chain(), SearchSpace((2,), staleness=-1))
    monkeypatch.setattr(registry, "FAMILIES", {**FAMILIES, "alone": Alone(refuses=True)})
    for ask in (listed, best):
        with pytest.raises(PlanError, match="the staleness is -1"):
            ask(question)


class NarrowInOneOrder:
    """A family of a chain's layouts with narrow features, where the trainers stand in one order."""

    def __init__(self, names):
        self.names = names

    def is_for(self, question):
        return question.profile.names == self.names

    def bounded(self, question, at):
        yield from chain.bounded(replace(question, space=replace(question.space, bits=(2,))), at)


def test_an_order_counts_that_is_the_best_by_another_family_than_the_chain(monkeypatch):
    question = Question(parse_profile(chain_document(5, 4), "chain"), SearchSpace((32,), 1))
    for others in permutations(question.profile.names[1:]):
        names = (question.profile.names[0], *others)
        monkeypatch.setattr(registry, "FAMILIES", {**FAMILIES, "narrow": NarrowInOneOrder(names)})
        assert best_order(question).names == names


def test_trainers_in_another_order_are_known_and_cost_what_their_steps_take():
    turned = stacked(LARGE, (6, 12, 18), 0, (32,) * 3, ("s0", "s3", "s2", "s1"))
    assert Engine(LARGE, SearchSpace(BITS), turned).layout == turned
    same = stacked(LARGE, (6, 12, 18), 0, (32,) * 3)
    quick = conditions_of(LARGE, {hop: Rates(1e12, 1e12, 0.5) for hop in combinations(LARGE.names, 2)})
    seconds = loads_of(LARGE, [turned, same]).seconds(quick)
    assert seconds[0] == pytest.approx(seconds[1])


def test_more_than_two_thousand_layouts_are_not_listed():
    question = Question(replace(LARGE, max_staleness=4), SearchSpace(BITS))
    assert chain.listed(question) is None
    assert chain.listed(replace(question, space=SearchSpace(BITS, cuts=(4, 8, 12)))) is not None


@given(st.integers(4, 8), st.integers(3, 4), st.integers(0, 10**6))
def test_neighbours_differ_in_one_thing_and_may_be_chosen(blocks, stages, seed):
    _, question = chain_question(blocks, stages, seed, SearchSpace((4, 32)))
    layout = best(question).layout
    for one in neighbours(question, layout, conditions_of(question.profile)):
        differs = [
            one.workers != layout.workers,
            len(one.cuts) == len(layout.cuts) and one.cuts != layout.cuts,
            len(one.bits) == len(layout.bits) and one.bits != layout.bits,
            one.staleness != layout.staleness,
        ]
        assert sum(differs) <= 1 or one.workers != layout.workers
        assert permits(question, one)


def test_a_search_finds_the_best_of_each_condition_and_of_each_single_trainer():
    question = Question(replace(LARGE, max_staleness=4), SearchSpace(BITS))
    now = conditions_of(LARGE)
    slow = replace(now, rates=now.rates / 50.0)
    found = Search(question, (now, slow)).run()
    assert found[0] == best(question, now).layout
    assert best(question, slow).layout in found
    for name in LARGE.names[1:]:
        alone = replace(question, space=replace(question.space, workers=frozenset({"s0", name})))
        assert best(alone, now).layout in found
    assert len(found) == len(set(found)) <= MOST_GENERATED


def test_a_chain_of_many_layouts_relieves_a_device_as_a_small_one_does():
    training = ChainTraining(LARGE)
    training.run(60)
    training.slowness[1] = 2.0
    training.run(90)
    assert training.true_seconds(training.engine.layout) <= training.best_seconds() / 0.9


def test_what_a_search_for_a_former_question_finds_is_dropped():
    training = ChainTraining(LARGE)
    training.engine.observe(Observation(1.0, 1))
    search = training.engine.next_search()
    assert search is not None
    training.pin((3, 9, 15))
    training.engine.weigh(search.question, search.run())
    decision = training.engine.observe(Observation(2.0, 2))
    assert decision.layout.cuts == (3, 9, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 40, 8))])
def test_an_engine_that_searches_loses_little_to_one_that_weighs_all(seed, monkeypatch):
    case, space = random_case(seed), SearchSpace((2, 4, 8, 32))

    def steps() -> float:
        engine = Engine(case.profile, space, case.start, total_steps=10_000)
        return simulate(case.profile, [case.link], case.start, 600.0, engine, begin=PROBE_SECONDS).steps

    complete = steps()
    monkeypatch.setattr(pool_module, "listed", lambda _question: None)
    assert steps() >= 0.95 * complete


def test_conditions_move_by_little_before_the_next_search():
    training = ChainTraining(LARGE)
    asked = []
    next_search = training.engine.next_search
    training.engine.next_search = lambda: (
        asked.append(search) or search if (search := next_search()) is not None else None
    )
    training.run(120)
    assert 2 <= len(asked) <= 4, "once a minute, where nothing moves"
