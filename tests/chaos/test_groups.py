"""Groups under kills of members and trainers and lost links: all members end with the weights of an undisturbed run.

Where a newcomer joins, they are those of a loop that reads in the logs who took part in which step.
"""

import pytest

from tests.chaos.groups import disturbed_group, expected_groups

FAULTS_PER_RUN, FEW_FAULTS, FAULTS = 12, 10, 60


@pytest.fixture(scope="module")
def expected():
    """Return the weights of undisturbed groups."""
    return expected_groups()


async def losses(expected, folder, faults, seed):
    """Disturb groups until so many faults have happened; returns what was lost, and the outcomes."""
    outcomes = []
    while sum(outcome.faults.total() for outcome in outcomes) < faults:
        place = folder / str(seed + len(outcomes))
        place.mkdir()
        outcomes.append(await disturbed_group(seed + len(outcomes), place, expected, FAULTS_PER_RUN))
    return [outcome.loss for outcome in outcomes if outcome.loss], outcomes


@pytest.mark.usefixtures("one_thread")
async def test_a_few_faults_of_a_group_at_two_trainers_lose_nothing(expected, tmp_path):
    lost, _ = await losses(expected, tmp_path, FEW_FAULTS, 1)
    assert not lost


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
async def test_groups_at_one_trainer_and_at_two_lose_nothing(expected, tmp_path):
    lost, outcomes = await losses(expected, tmp_path, FAULTS, 8)
    assert not lost
    assert {outcome.trainers for outcome in outcomes} == {1, 2}
    assert any(outcome.joined for outcome in outcomes)
