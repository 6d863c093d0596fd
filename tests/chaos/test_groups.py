"""Groups under kills of members and trainers and lost links: all members end with the weights of an undisturbed run.

Where a newcomer joins, they are those of a loop that reads in the logs who took part in which step.
"""

import pytest

from tests.chaos.groups import disturbed_group, has_slices

FAULTS_PER_RUN = 12
RUNS = range(9, 11)
"""Seeds of runs in which there are one trainer and two, a newcomer, and blocks in slices."""


async def losses(folder, seeds):
    """Disturb groups, each by some faults; returns what was lost, and the outcomes."""
    outcomes = []
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        outcomes.append(await disturbed_group(seed, place, FAULTS_PER_RUN))
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
