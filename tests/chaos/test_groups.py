"""Groups under kills of members and trainers and lost links: all members end with the weights of an undisturbed run.

Where a newcomer joins, they are those of a loop that reads in the logs who took part in which step. With K of 1 or more
only the order of events decides the weights: all members end with the same, and have a part in every update.
"""

import pytest

from tests.chaos.faults import Fault
from tests.chaos.group_varieties import EXTRAS, has_slices
from tests.chaos.groups import disturbed_group

FAULTS_PER_RUN = 12
RUNS = range(9, 11)
"""Seeds of runs in which there are one trainer and two, a newcomer, and blocks in slices."""
WITH_EXTRAS = (0, 3)
"""Seeds of runs that have all extras between them, and of which one is of blocks in slices at two trainers."""
LATE_RUN = range(6, 7)
LATE_RUNS = (7, 15, 22, 30)
"""Seeds of runs in slices with K of 2, 4, 5 and 2, at one trainer and at two, two of them with a newcomer."""


async def losses(folder, seeds, faults=FAULTS_PER_RUN, *, with_extras=False):
    """Disturb groups, each by some faults; returns what was lost, and the outcomes."""
    outcomes = []
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        outcomes.append(await disturbed_group(seed, place, faults, with_extras=with_extras))
    assert all(outcome.faults for outcome in outcomes)
    return [outcome.loss for outcome in outcomes if outcome.loss], outcomes


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
async def test_groups_at_one_trainer_and_at_two_lose_nothing(tmp_path):
    lost, outcomes = await losses(tmp_path, RUNS)
    assert not lost
    assert {outcome.trainers for outcome in outcomes} == {1, 2}
    assert any(outcome.joined for outcome in outcomes)
    assert {has_slices(outcome.seed) for outcome in outcomes} == {False, True}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
async def test_groups_that_end_early_with_a_plateau_an_average_and_the_best_weights_of_each_member_lose_nothing(
    tmp_path,
):
    lost, outcomes = await losses(tmp_path, WITH_EXTRAS, with_extras=True)
    assert not lost
    assert {name for outcome in outcomes for name in outcome.extras} == {*EXTRAS}
    assert {outcome.trainers for outcome in outcomes} == {1, 2}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_thread")
async def test_a_group_in_slices_that_is_late_over_links_that_are_cut_loses_nothing(tmp_path):
    lost, (outcome,) = await losses(tmp_path, LATE_RUN, faults=3)
    assert not lost
    assert has_slices(outcome.seed)
    assert outcome.staleness
    assert outcome.faults[Fault.STALL]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
async def test_a_group_in_slices_at_two_trainers_with_a_newcomer_and_members_that_stall_loses_nothing(tmp_path):
    lost, (outcome,) = await losses(tmp_path, LATE_RUNS[1:2])
    assert not lost
    assert (outcome.trainers, outcome.staleness) == (2, 4)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
async def test_groups_in_slices_with_members_that_stall_lose_nothing(tmp_path):
    lost, outcomes = await losses(tmp_path, LATE_RUNS)
    assert not lost
    assert {outcome.trainers for outcome in outcomes} == {1, 2}
    assert len({outcome.staleness for outcome in outcomes} - {0}) > 2
