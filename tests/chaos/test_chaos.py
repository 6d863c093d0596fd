"""Invariants 1 to 3 under faults of every kind, over many short runs of real processes."""

import pytest

from tests.chaos.__main__ import STALENESS, disturbed, table
from tests.chaos.faults import POINTS, resolve
from tests.chaos.order import Worst, exceeds, worst
from tests.chaos.run import EXTRAS, wrong_steps
from tests.chaos.varieties import DATA, RECIPES, STEPS, draw_extras

RUN = range(2, 3)
RUNS = range(3, 9)
"""Seeds; the runs of `RUNS` are of every kind: candidates, of which some die; no state is lost; a group; ways are lost."""
WITH_EXTRAS = (66, 67, 69, 70, 72, 75)
"""Seeds of runs that have all extras between them and the one of `RUN`, and whose bits are judged with each."""


@pytest.mark.parametrize("point", sorted({point for points in POINTS.values() for point in points}))
def test_a_fault_can_happen_where_it_is_planned(point):
    owner, name = resolve(point)
    assert callable(getattr(owner, name))


async def test_the_faults_of_a_run_lose_nothing(tmp_path):
    (outcome,) = await runs(RUN, tmp_path)
    assert outcome.faults
    assert not outcome.loss


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_runs_of_every_kind_lose_nothing(tmp_path, capsys):
    outcomes = await runs(RUNS, tmp_path)
    with capsys.disabled():
        print("\n" + table(outcomes))
    assert not [outcome for outcome in outcomes if outcome.loss]
    assert all(outcome.faults for outcome in outcomes)
    for kind in ("stateless", "candidates", "ways", "detours"):
        assert any(getattr(outcome, kind) for outcome in outcomes), kind
    assert any(outcome.members > 1 for outcome in outcomes)
    for limit in STALENESS:  # reached, or the bound would have held by itself
        seen = [outcome.worst for outcome in outcomes if outcome.staleness == limit]
        assert max(seen) == (limit, limit + 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_runs_of_every_recipe_and_order_of_samples_lose_nothing(tmp_path):
    outcomes = [(await runs(range(seed, seed + 1), tmp_path, EXTRAS))[0] for seed in WITH_EXTRAS]
    assert not [outcome for outcome in outcomes if outcome.loss]
    assert {outcome.staleness for outcome in outcomes} == {0}
    drawn = {name for outcome in outcomes for name in outcome.extras}
    assert {*RECIPES, *DATA} == drawn.union(*(draw_extras(seed, always=False) for seed in RUN))


async def runs(seeds, folder, only=None):
    """Disturb the runs of these seeds, one after another."""
    drawn = disturbed(seeds.start, folder, only)
    return [await anext(drawn) for _ in seeds]


def order(text):
    names = {"a": "fresh", "f": "forward 0", "b": "backward 0", "F": "forward 2", "B": "backward 2"}
    return [" ".join([names[word[0]], word[1:]]) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", Worst(0, 0)),
        ("a f0 b0 f1 b1", Worst(0, 1)),
        ("a f0 f1 b0 f2 b1 b2", Worst(1, 2)),
        ("a f0 f1 f2 b0 b1 b2", Worst(2, 3)),
        ("a f0 f1 a f0 b0 f1 b1", Worst(0, 2)),
        ("a f7 f8 f9 b7 a f8 f9 b8 b9", Worst(2, 3)),
        ("a f0 F0 B0 b0 f1 f2 F1 B1 b1 F2 B2 b2", Worst(1, 2)),
    ],
)
def test_what_an_order_comes_to(text, seen):
    assert worst(order(text)) == seen
    assert not exceeds(seen, max(seen.staleness, seen.in_flight - 1))


@pytest.mark.parametrize("text", ["a b0", "a f0 b0 b0", "a f0 f1 b1 b1", "a f0 a b0", "a f0 B0"])
def test_a_gradient_that_is_applied_without_its_batch_is_found(text):
    with pytest.raises(ValueError, match="not in flight"):
        worst(order(text))


def test_a_gradient_too_stale_and_a_batch_too_many_are_found():
    assert "3 steps stale" in exceeds(worst(order("a f0 f1 f2 f3 b0")), 2)
    assert "4 batches were in flight" in exceeds(worst(order("a f0 f1 f2 f3 b3")), 2)
    assert not exceeds(worst(order("a f0 f1 f2 b0 f3 b1")), 2)


@pytest.mark.parametrize(
    ("applied", "has_part", "wrong"),
    [
        (None, False, ""),  # killed before it ever had a block
        (None, True, "no log"),
        (STEPS - 1, False, ""),
        (STEPS - 1, True, "has applied 79 of 80"),
        (STEPS, True, ""),
        (STEPS + 1, False, "has applied 81 of 80"),
    ],
)
def test_a_worker_with_a_part_has_applied_all_steps_and_nobody_more(tmp_path, applied, has_part, wrong):
    if applied is not None:
        (tmp_path / "session-edge.steps").write_text("".join(f"applied {step} 0\n" for step in range(applied)))
    found = wrong_steps(tmp_path, STEPS, has_part=has_part)
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_a_step_that_was_applied_twice_is_found(tmp_path):
    (tmp_path / "session-edge.steps").write_text("applied 0 0\napplied 1 0\napplied 1 0\n")
    assert "each step once" in wrong_steps(tmp_path, STEPS, has_part=False)
