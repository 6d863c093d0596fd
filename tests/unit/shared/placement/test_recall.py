"""Features that are recalled: which programs do, what crosses for it, and where it cannot be."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.placement import (
    AGENT,
    BlockFacts,
    Cargo,
    Forward,
    ModelFacts,
    Permissions,
    Placement,
    Recall,
    Receive,
    Rows,
    Source,
    StepPlan,
    Tile,
    check,
    kept_stage,
    segments,
    two_workers,
)

GPU = "gpu"
ANYWHERE = Permissions(inputs_to=frozenset({AGENT, GPU, "far"}), gradients_to=frozenset({AGENT, GPU, "far"}))
FROZEN, LEARNING = (
    BlockFacts("frozen", trainable=False, has_buffers=True, steady=True),
    BlockFacts("learning", has_buffers=True),
)
MODEL = ModelFacts((FROZEN, FROZEN, LEARNING, FROZEN, LEARNING), label_tensors=2, recalls=True)
PAIR = two_workers(AGENT, GPU, 2, 5, 8)


def test_the_trainer_recalls_in_training_alone_and_numbers_go_with_the_labels():
    plan = StepPlan(PAIR, MODEL)
    stage = Tile(GPU, 2, 5, Rows(0, 8))
    program = list(plan.program(GPU))
    assert program.index(Recall(stage)) + 1 == program.index(Forward(stage))
    assert [one.crossing.cargo for one in program if isinstance(one, Receive)] == [Cargo.FEATURE, Cargo.LABEL]
    assert not any(isinstance(one, Recall) for one in plan.program(AGENT))
    assert [one.slots for one in plan.crossings if one.cargo is Cargo.LABEL] == [(0, 1, 2)]
    for other in (StepPlan(PAIR, MODEL, training=False), StepPlan(PAIR, replace(MODEL, recalls=False))):
        assert not any(isinstance(one, Recall) for one in other.program(GPU))
        assert [one.slots for one in other.crossings if one.cargo is Cargo.LABEL] == [(0, 1)]


def test_nothing_comes_down():
    assert {one.sender for one in StepPlan(PAIR, MODEL).crossings} == {AGENT}


@pytest.mark.parametrize("cut", [1, 2])
def test_a_cut_behind_blocks_that_never_change_may_be(cut):
    check(two_workers(AGENT, GPU, cut, 5, 8), MODEL, ANYWHERE)


def shared(placement: Placement) -> Placement:
    halves = (Tile(GPU, 2, 5, Rows(0, 4)), Tile("far", 2, 5, Rows(4, 8)))
    tiles, owners = (placement.tiles[0], *halves), dict.fromkeys((2, 3, 4), GPU)
    return replace(placement, workers=(AGENT, GPU, "far"), tiles=tiles, owners=owners)


def stacked(*bounds: tuple[str, int, int]) -> Placement:
    whole = Rows(0, 8)
    workers = tuple(dict.fromkeys(worker for worker, _, _ in bounds))
    return Placement(0, 5, 8, workers, tuple(Tile(*each, whole) for each in bounds), (Source(AGENT, whole),))


@pytest.mark.parametrize(
    ("blocks", "steady"),
    [
        ((FROZEN, FROZEN, LEARNING, FROZEN, LEARNING), 2),
        ((FROZEN, LEARNING, FROZEN, LEARNING, LEARNING), 1),
        ((FROZEN,) * 5, 4),
    ],
)
def test_a_worker_that_has_all_blocks_recalls_behind_the_first_that_never_change(blocks, steady):
    alone, model = stacked((AGENT, 0, 5)), ModelFacts(blocks, recalls=True)
    check(alone, model, ANYWHERE)
    plan = StepPlan(alone, model)
    assert plan.recalls_at(AGENT)
    frozen, rest = Tile(AGENT, 0, steady, Rows(0, 8)), Tile(AGENT, steady, 5, Rows(0, 8))
    assert kept_stage(alone, model) == rest
    program = [one for one in plan.program(AGENT) if isinstance(one, Forward | Recall)]
    assert program == [Forward(frozen), Recall(rest), Forward(rest)]
    assert not plan.crossings
    assert len(segments(plan.program(AGENT))[1]) == 1, "it is done in one go"
    assert not any(isinstance(one, Recall) for one in StepPlan(alone, model, training=False).program(AGENT))
    assert [
        one.stage for one in StepPlan(alone, replace(model, recalls=False)).program(AGENT) if isinstance(one, Forward)
    ] == [Tile(AGENT, 0, 5, Rows(0, 8))]


def test_where_all_blocks_are_on_one_worker_its_first_may_not_change():
    model = ModelFacts((LEARNING, FROZEN, FROZEN, FROZEN, LEARNING), recalls=True)
    with pytest.raises(ConfigError, match=r"block 0 \(learning\) learns.*; freeze it by model.frozen$"):
        check(stacked((AGENT, 0, 5)), model, ANYWHERE)


def test_changes_of_features_take_a_trainer():
    with pytest.raises(ConfigError, match=r"\(deployment.changes\), which takes one cut"):
        check(stacked((AGENT, 0, 5)), replace(MODEL, recalls=False, sends_changes=True), ANYWHERE)


@pytest.mark.parametrize(
    "placement",
    [
        stacked((AGENT, 0, 1), (GPU, 1, 3), (AGENT, 3, 5)),
        stacked((AGENT, 0, 1), (GPU, 1, 2), ("far", 2, 5)),
        replace(stacked((GPU, 0, 5)), workers=(AGENT, GPU)),
        replace(PAIR, owners={0: GPU}),
        shared(PAIR),
    ],
)
def test_anything_but_one_cut_is_refused(placement):
    none = replace(MODEL, recalls=False)
    check(placement, none, ANYWHERE)
    for model, key in ((MODEL, "recall"), (replace(none, sends_changes=True), "changes")):
        with pytest.raises(ConfigError, match=rf"\(deployment\.{key}\), which takes one cut"):
            check(placement, model, ANYWHERE)


def test_a_worker_that_keeps_features_has_a_state():
    model = replace(MODEL, blocks=(LEARNING, LEARNING, FROZEN, FROZEN, FROZEN), recalls=False)
    frozen = replace(model, blocks=tuple(replace(one, has_buffers=one.trainable) for one in model.blocks))
    assert StepPlan(PAIR, frozen).stateless
    plan = StepPlan(PAIR, replace(frozen, sends_changes=True))
    assert not plan.stateless
    assert plan.sends_changes
    assert not StepPlan(PAIR, replace(frozen, sends_changes=True), training=False).sends_changes


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (LEARNING, r"block 1 \(learning\) learns.*; freeze it by model.frozen, or set deployment.cut to 1"),
        (replace(FROZEN, steady=False), r"block 1 \(frozen\) draws random numbers, or keeps statistics"),
    ],
)
def test_a_block_before_the_cut_that_changes_is_refused(block, sentence):
    model = ModelFacts((FROZEN, block, LEARNING, LEARNING, LEARNING), recalls=True)
    check(two_workers(AGENT, GPU, 1, 5, 8), model, ANYWHERE)
    with pytest.raises(ConfigError, match=sentence):
        check(PAIR, model, ANYWHERE)
