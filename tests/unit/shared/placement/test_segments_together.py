"""The exchange of shared blocks: segments with each block once, and what travels together with what."""

import dataclasses

import pytest

from shared.errors import ConfigError
from shared.placement import (
    Cargo,
    Exchange,
    Permissions,
    StepPlan,
    bundles,
    check,
    document_of,
    parse_placement,
    unnamed_blocks,
)
from tests.support.group_members import SAMPLES, copies

EXCHANGE = Exchange(((2, 4), (0, 2)), ((0, 1), (1, 4)), barrier=True)
PLACED = dataclasses.replace(copies(4), exchange=EXCHANGE)
EVERYTHING = Permissions(inputs_to=frozenset({"near"}), gradients_to=frozenset({"near"}))


def model():
    return dataclasses.replace(unnamed_blocks(4), merged=True)


def test_a_document_brings_the_same_exchange():
    assert parse_placement(document_of(PLACED), "here", 4, SAMPLES) == PLACED
    assert parse_placement(document_of(copies(4)), "here", 4, SAMPLES).exchange is None


@pytest.mark.parametrize(
    ("exchange", "sentence"),
    [
        ({"push": [[0, 2], [2, 4]], "pull": [[0, 4]]}, "exchange.push is .* once, the last blocks first"),
        ({"push": [[0, 4]], "pull": [[0, 2]]}, "exchange.pull is .* each of the 4 blocks once, the first blocks first"),
        ({"push": [[0, 4]], "pull": [[0, 3], [2, 4]]}, "exchange.pull is"),
        ({"push": [[2, 2], [0, 4]], "pull": [[0, 4]]}, "exchange.push is"),
        ({"push": [], "pull": [[0, 4]]}, "exchange.push is"),
        ({"push": [[0, -4]], "pull": [[0, 4]]}, "must be an integer of 0 or more"),
        ({"push": 3, "pull": [[0, 4]]}, "must be a list"),
        ({"push": [[0, 4]]}, "exchange.pull is null; it must be a list"),
        ({"push": [[0, 4]], "pull": [[0, 4]], "barrier": 1}, "it must be true or false"),
        ({"push": [[0, 4]], "pull": [[0, 4]], "slices": 1}, "unknown key"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(exchange, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check(parse_placement({**document_of(PLACED), "exchange": exchange}, "here", 4, SAMPLES), model(), EVERYTHING)


def test_a_segment_travels_together_and_weights_wait_for_all_updates_behind_a_barrier():
    plan = StepPlan(PLACED, model())
    pushed, pulled = plan.between("edge", "near"), plan.between("near", "edge")
    found = bundles(EXCHANGE, pushed)
    assert {one.index: [pushed[at].index for at in found[number].together] for number, one in enumerate(pushed)} == {
        0: [1, 0],
        1: [1, 0],
        2: [3, 2],
        3: [3, 2],
    }
    assert all(one.after == one.together for one in found.values())
    found = bundles(EXCHANGE, pulled)
    together = [[pulled[at].index for at in found[number].together] for number in range(len(pulled))]
    assert together == [[0], [1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert all(set(one.after) == set(range(len(pulled))) for one in found.values())
    open_ended = bundles(dataclasses.replace(EXCHANGE, barrier=False), pulled)
    assert all(one.after == one.together for one in open_ended.values())


def test_without_an_exchange_each_goes_by_itself():
    plan = StepPlan(copies(4), model())
    assert bundles(None, plan.between("edge", "near")) == {}
    assert {one.cargo for one in plan.between("near", "edge")} == {Cargo.WEIGHTS}
