"""A worker that owns no changing block loses all in mid-step and begins again; nobody goes back, and the end is the same."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.placement import Placement, Rows, Source, StepPlan, Tile
from shared.training.recipe import Recipe
from tests.support.begun_again import LosingSession, Replay
from tests.support.examples import examples
from tests.support.placed import MODEL_FACTS, batch_of, built, recipe, state_of
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, SAMPLES = 4, 6
WHOLE, ADAM = Rows(0, SAMPLES), recipe("adam")
TIERS = Placement(
    version=1,
    blocks=4,
    batch_size=SAMPLES,
    workers=("edge", "near", "far"),
    tiles=(
        Tile("far", 0, 2, Rows(0, 2)),
        Tile("edge", 0, 1, Rows(2, 4)),
        Tile("near", 0, 1, Rows(4, 6)),
        Tile("near", 1, 2, Rows(2, 6)),
        Tile("near", 2, 4, WHOLE),
    ),
    sources=(Source("edge", WHOLE),),
    owners={0: "near", 1: "near"},
)
"""The far worker shares blocks that the near one owns."""


def trained(
    placement: Placement,
    worker: str,
    losses: list[int],
    name: str = "dropping",
    seed: int = 0,
    told: Recipe = ADAM,
) -> LosingSession:
    dice = random.Random(seed)
    longest = dice.choice([0.0, 0.001, 0.05])

    async def main() -> LosingSession:
        session = LosingSession(built(name), placement, told, worker, losses, lambda: dice.uniform(0, longest))
        await session.train([batch_of(step, placement.batch_size) for step in range(STEPS)])
        return session

    return run_virtually(main)


def assert_plain(session: LosingSession, placement: Placement, name: str = "dropping") -> None:
    module = built(name)
    plain = PlainTiles(list(module), placement, recipe("adam"))
    for step in range(STEPS):
        plain.step(step, *batch_of(step, placement.batch_size))
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, placement))


AHEAD = st.sampled_from([0, 2])
"""Steps whose samples leave before they begin."""


@pytest.mark.parametrize(
    ("stride", "ahead"),
    [(29, 2), *(pytest.param(1, ahead, marks=pytest.mark.full) for ahead in (0, 2))],
)
def test_a_worker_without_a_state_is_lost_at_every_packet_and_the_end_is_that_of_one_process(stride, ahead):
    point = lives = 1
    while lives:
        session = trained(TIERS, "far", [point], seed=point, told=recipe("adam", samples_ahead=ahead))
        assert session.plan.runs_ahead == ahead, "its samples come to it with nothing computed"
        assert_plain(session, TIERS)
        lives = len(session.lives) - 1
        point += stride
    assert point > 100, "packets of every step"


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(st.data(), st.sampled_from(["dropping", "normed"]), st.lists(st.integers(0, 120), min_size=1, max_size=4), AHEAD)
def test_at_any_placement_and_as_often_as_one_likes(data, name, losses, ahead):
    placement = replace(data.draw(with_one_source(name)), staleness=0)
    plan = StepPlan(placement, MODEL_FACTS[name])
    assume(plan.stateless)
    worker = data.draw(st.sampled_from(sorted(plan.stateless)))
    told = recipe("adam", samples_ahead=ahead)
    session = trained(placement, worker, losses, name, data.draw(st.integers(0, 1000)), told)
    assert_plain(session, placement, name)


@st.composite
def with_one_source(draw, name: str) -> Placement:
    """Draw a placement in which all samples enter at one worker."""
    placement = draw(valid_placements(MODEL_FACTS[name], st.just(SAMPLES)))
    return replace(placement, sources=(Source(placement.workers[0], WHOLE),))


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(st.data(), st.sampled_from(["dropping", "normed"]), st.lists(st.integers(0, 120), min_size=1, max_size=4), AHEAD)
def test_with_staleness_the_order_of_all_lives_decides_every_bit(data, name, losses, ahead):
    placement = data.draw(with_one_source(name))
    plan = StepPlan(placement, MODEL_FACTS[name])
    assume(plan.stateless)
    worker = data.draw(st.sampled_from(sorted(plan.stateless)))
    told = recipe("adam", samples_ahead=ahead)
    session = trained(placement, worker, losses, name, data.draw(st.integers(0, 1000)), told)
    replayed = Replay(session, built(name), told)
    chains = replayed.run([batch_of(step, placement.batch_size) for step in range(STEPS)])
    assert_same_bits(state_of(chains, placement), state_of(session.chains, placement))
