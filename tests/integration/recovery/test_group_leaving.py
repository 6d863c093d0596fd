"""A member leaves a group of real processes whose members are ahead of each other, or have a cut."""

import signal

import pytest

from shared.errors import ExitCode
from tests.integration.recovery.test_group_recovery import LEFT, SIZE, SLOWLY, STEPS, Running, ranks_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
WITH_A_CUT = ["deployment.cut=2", 'deployment.codec="raw"']


def flags(*more):
    """Return the flags of all members."""
    return {rank: [*slowly, *more] for rank, slowly in SLOWLY.items()}


def without_the_last(running, said, log):
    """Have the last member leave a group that trains; return the other one, and the first step without the last, as all say."""
    members = [running.member(rank) for rank in range(SIZE)]
    said.first_event("checkpoint of a group", least_step=4)
    running.leave(1)
    assert members[1][0].wait(60) == ExitCode.TERMINATED, members[1][1]
    stop = int(LEFT.search(str(members[1][1]))[1])
    assert members[0][0].wait(120) == 0, members[0][1]
    took_part = {key[0]: ranks for key, ranks in ranks_in(log).items()}
    assert took_part == {step: (0, 1) if step < stop else (0,) for step in range(STEPS)}
    said.first_event("a group has ended")
    return members[0], stop


@pytest.mark.parametrize("staleness", [1, 3])
def test_a_member_leaves_a_group_whose_members_may_be_ahead(staleness, tmp_path):
    log = tmp_path / "log"
    with Running(tmp_path, step_logs={"near": log}, more=flags(f"deployment.staleness={staleness}")) as running:
        _, said = running.trainer()
        _, stop = without_the_last(running, said, log)
        assert 4 < stop < STEPS


def test_those_who_stay_train_on_with_a_cut_as_one_loop_does(tmp_path):
    log = tmp_path / "log"
    with Running(tmp_path, step_logs={"near": log}, more=flags(*WITH_A_CUT)) as running:
        _, said = running.trainer()
        member, stop = without_the_last(running, said, log)
        running.assert_whole([member], lambda step, *_: (0, 1) if step < stop else (0,))


def test_a_trainer_that_is_killed_after_a_leave_goes_on_without_the_member_where_members_may_be_ahead(tmp_path):
    log = tmp_path / "log"
    with Running(tmp_path, step_logs={"near": log}, more=flags("deployment.staleness=2")) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED, members[1][1]
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        _, again = running.trainer()
        assert members[0][0].wait(120) == 0, members[0][1]
        again.first_event("a group has ended")
        stop = int(LEFT.search(str(members[1][1]))[1])
        assert {key[0]: ranks for key, ranks in ranks_in(log).items()} == {
            step: (0, 1) if step < stop else (0,) for step in range(STEPS)
        }
