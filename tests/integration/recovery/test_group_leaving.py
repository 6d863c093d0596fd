"""Members leave groups of real processes, of which some are killed; those who stay end as the trainers' logs say."""

import signal
from pathlib import Path

import pytest

from shared.errors import ExitCode
from tests.support.running_group import LEFT, SIZE, SLOWLY, STEPS, Running, ranks_in

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [1, pytest.param(3, marks=pytest.mark.full)])
def test_a_member_leaves_a_group_whose_members_may_be_ahead(staleness, tmp_path):
    log = tmp_path / "log"
    with Running(tmp_path, step_logs={"near": log}, more=flags(f"deployment.staleness={staleness}")) as running:
        _, said = running.trainer()
        _, stop = without_the_last(running, said, log)
        assert 4 < stop < STEPS


@pytest.mark.full
def test_those_who_stay_train_on_with_a_cut_as_one_loop_does(tmp_path):
    log = tmp_path / "log"
    with Running(tmp_path, step_logs={"near": log}, more=flags(*WITH_A_CUT)) as running:
        _, said = running.trainer()
        member, stop = without_the_last(running, said, log)
        running.assert_whole([member], lambda step, *_: (0, 1) if step < stop else (0,))


@pytest.mark.full
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


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [pytest.param(("near",), marks=pytest.mark.full), ("near", "far")])
def test_a_group_goes_on_without_a_member_that_has_left(trainers, tmp_path):
    logs = {name: tmp_path / f"{name}-log" for name in trainers}
    with Running(tmp_path, trainers, step_logs=logs, more=SLOWLY) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        stop = int(LEFT.search(str(members[1][1]))[1])
        assert 4 < stop < STEPS
        running.assert_whole(members[:1], lambda step, _: (0, 1) if step < stop else (0,))
        for name in trainers:
            for (step, *_), ranks in ranks_in(logs[name]).items():
                assert ranks == ((0, 1) if step < stop else (0,)), "all trainers agree on the first step without it"
        for each in said:
            each.first_event("a group has ended")


@pytest.mark.slow
def test_a_trainer_that_is_killed_after_a_leave_goes_on_without_the_member(tmp_path):
    log = tmp_path / "near-log"
    with Running(tmp_path, step_logs={"near": log}, more=SLOWLY) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        running.trainer()
        assert members[0][0].wait(120) == 0, members[0][1]
        ranks = ranks_in(log)
        assert {(0, 1), (0,)} == set(ranks.values())
        running.assert_whole(members[:1], lambda step, one: ranks[step, *one])


@pytest.mark.full
@pytest.mark.parametrize("killed", ["near", "far"])
def test_a_trainer_that_is_killed_while_a_member_leaves_ends_as_the_logs_say(killed, tmp_path):
    """The deciding trainer, near, hears it first; what it has heard holds for all."""
    trainers = ("near", "far")
    logs = {name: tmp_path / f"{name}-log" for name in trainers}
    with Running(tmp_path, trainers, step_logs=logs, more=SLOWLY) as running:
        (other,) = set(trainers) - {killed}
        process = running.trainer_killed_at("cloud_trainer.groups.trained_group:TrainedGroup.leave", killed)
        _, said = running.trainer(other)
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert process.wait(60) == -signal.SIGKILL
        running.trainer(killed)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        if killed == "near":  # nobody has heard it: the seat is kept, and the member comes back
            assert "drained before its group had let it go" in str(members[1][1])
            members[1] = running.member(1)
            running.assert_whole(members)
            return
        assert members[0][0].wait(120) == 0, members[0][1]
        ranks = {key: took for name in trainers for key, took in ranks_in(logs[name]).items()}
        assert set(ranks.values()) >= {(0,)}
        running.assert_whole(members[:1], lambda step, one: ranks[step, *one])


@pytest.mark.full
def test_the_last_member_leaves_a_group_that_stands_still(tmp_path):
    with Running(tmp_path, more=SLOWLY) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        running.leave(0)
        assert members[0][0].wait(60) == ExitCode.TERMINATED
        said.first_event("nobody goes on with a group")


@pytest.mark.full
@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-9]), Path.unlink])
def test_a_trainer_whose_members_are_damaged_knows_from_its_checkpoints_who_has_left(damage, tmp_path):
    log = tmp_path / "near-log"
    with Running(tmp_path, step_logs={"near": log}, more=SLOWLY) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        said.first_event("checkpoint of a group", least_step=int(LEFT.search(str(members[1][1]))[1]))
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        (file,) = (tmp_path / "near").rglob("members.json")
        damage(file)
        _, again = running.trainer()
        again.first_event("members of a group are damaged or missing; those of its newest checkpoint count")
        assert members[0][0].wait(120) == 0, members[0][1]
        ranks = ranks_in(log)
        assert {(0, 1), (0,)} == set(ranks.values())
        running.assert_whole(members[:1], lambda step, one: ranks[step, *one])
