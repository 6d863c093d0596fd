"""Groups of real processes of which some are killed: members and trainers; they end as if nothing had happened."""

import json
import resource
import signal

import pytest

from shared.training.step_log import merged_ranks
from tests.chaos.faults import Fault
from tests.support.group_members import PlainCodecs
from tests.support.running_group import SIZE, SLOWLY, STEPS, WITHOUT_THE_LATE, Running, gated, joined_late

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "by"),
    [
        (0, signal.SIGKILL),
        pytest.param(1, signal.SIGKILL, marks=pytest.mark.full),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.full),
    ],
)
def test_a_member_that_ends_and_comes_back_does_what_it_has_not_done(killed, by, tmp_path):
    with Running(tmp_path) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        members[killed][0].send_signal(by)
        members[killed][0].wait()
        members[killed] = running.member(killed)
        assert 4 <= said.first_event("a member begins", least_step=1)["step"] < STEPS
        running.assert_whole(members)


def test_a_trainer_that_is_killed_brings_the_group_back_to_its_newest_checkpoint(tmp_path):
    with Running(tmp_path) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        _, again = running.trainer()
        assert again.first_event("a group begins")["step"] >= 4
        running.assert_whole(members)


@pytest.mark.slow
def test_a_trainer_whose_disk_is_full_says_so_trains_on_and_writes_its_next_checkpoint(tmp_path):
    some_checkpoints_later = 30
    with Running(tmp_path) as running:
        trainer = running.trainer_with(Fault.DISK_FULL, "os:fsync", nth=some_checkpoints_later)
        members = [running.member(rank) for rank in range(SIZE)]
        running.assert_whole(members)
        assert trainer.poll() is None
        events = [json.loads(line) for line in (tmp_path / "trainer.log").read_text().splitlines()]
        (failed,) = (place for place, each in enumerate(events) if each["event"] == "checkpoint of a group not written")
        assert "No space left on device" in events[failed]["reason"]
        assert any(each["event"] == "checkpoint of a group" for each in events[failed:])


@pytest.mark.full
def test_a_trainer_that_is_told_to_stop_goes_on_where_it_was(tmp_path):
    with Running(tmp_path) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(30) == 0
        _, again = running.trainer()
        assert again.first_event("a group begins")["step"] >= 4
        running.assert_whole(members)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("cloud_trainer.groups.trained_group:TrainedGroup.occupy", marks=pytest.mark.full),
        pytest.param("cloud_trainer.groups.trained_group:TrainedGroup.begin", marks=pytest.mark.full),
        "cloud_trainer.sessions.worker.session_worker:SessionWorker.begin_in_group",
    ],
)
def test_members_wait_for_a_trainer_that_is_killed_while_they_open_their_sessions(point, tmp_path):
    with Running(tmp_path) as running:
        trainer = running.trainer_killed_at(point)
        members = [running.member(rank) for rank in range(SIZE)]
        assert trainer.wait(60) == -signal.SIGKILL
        running.trainer()
        running.assert_whole(members)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["near", pytest.param("far", marks=pytest.mark.full)])
def test_one_of_two_trainers_that_is_killed_brings_both_back_to_a_checkpoint_of_both(killed, tmp_path):
    with Running(tmp_path, ("near", "far")) as running:
        trainers = {name: running.trainer(name) for name in running.ports}
        members = [running.member(rank) for rank in range(SIZE)]
        trainers[killed][1].first_event("checkpoint of a group", least_step=4)
        trainers[killed][0].send_signal(signal.SIGKILL)
        trainers[killed][0].wait()
        running.trainer(killed)
        running.assert_whole(members)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.full
def test_a_member_of_two_trainers_that_is_killed_does_what_it_has_not_done(rank, tmp_path):
    with Running(tmp_path, ("near", "far")) as running:
        said = [running.trainer(name)[1] for name in running.ports]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        members[rank][0].send_signal(signal.SIGKILL)
        members[rank][0].wait()
        members[rank] = running.member(rank)
        running.assert_whole(members)
        for each in said:
            each.first_event("a group has ended")
            assert [event["life"] for event in each.heard if event["event"] == "a group begins"] == [1]


@pytest.mark.full
def test_two_trainers_that_are_killed_at_once_go_on(tmp_path):
    with Running(tmp_path, ("near", "far")) as running:
        trainers = {name: running.trainer(name) for name in running.ports}
        members = [running.member(rank) for rank in range(SIZE)]
        trainers["near"][1].first_event("checkpoint of a group", least_step=6)
        for process, _ in trainers.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        said = [running.trainer(name)[1] for name in running.ports]
        assert len({each.first_event("a group begins")["step"] for each in said}) == 1
        running.assert_whole(members)


@pytest.mark.full
def test_a_trainer_that_is_killed_before_it_has_forgotten_a_group_begins_the_next_training_anew(tmp_path):
    with Running(tmp_path) as running:
        trainer = running.trainer_killed_at("cloud_trainer.groups.group_store:GroupStore.forget")
        running.assert_whole([running.member(rank) for rank in range(SIZE)])
        assert trainer.wait(60) == -signal.SIGKILL
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        assert said.first_event("a group begins")["step"] == 0
        running.assert_whole(members)


@pytest.mark.full
def test_a_late_member_gets_its_results_from_a_trainer_that_was_killed_and_ends_the_group(tmp_path):
    with Running(tmp_path) as running:
        trainer, _ = running.trainer()
        killed = running.member_killed_at("edge_agent.sessions.open_session:OpenSession.close", 1)
        members = [running.member(0)]
        assert killed.wait(60) == -signal.SIGKILL
        assert members[0][0].wait(60) == 0, members[0][1]
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        _, said = running.trainer()
        members.append(running.member(1))
        said.first_event("a group has ended")
        running.assert_whole(members)


@pytest.mark.slow
def test_a_run_that_goes_on_without_a_late_member_equals_the_loop_that_reads_its_log(tmp_path):
    gate, logs = tmp_path / "gate", tmp_path / "logs"
    more = {0: [gated(gate, 200)]}
    with Running(tmp_path, more=more, group=[*WITHOUT_THE_LATE, f"checkpoints.step_log={logs}"]) as running:
        members = joined_late(running, gate)
        ranks = merged_ranks((logs / "line-group.steps").read_text().splitlines())
        assert {ranks[key] for key in ranks if key[0] < 2} == {(0,)}
        assert {step for step, *_ in ranks} == set(range(STEPS))
        assert (0, 1) in ranks.values()
        running.assert_whole(members, lambda step, one: ranks.get((step, *one), ()))


CODED = ["group.codec=uniform3"]


CODED_WEIGHTS = ["group.weights_codec=uniform3"]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_member_that_is_killed_gets_the_weights_that_the_others_have(killed, tmp_path):
    with Running(tmp_path, more=dict.fromkeys(range(SIZE), CODED_WEIGHTS)) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        members[killed][0].send_signal(signal.SIGKILL)
        members[killed][0].wait()
        members[killed] = running.member(killed)
        running.assert_whole(members, codecs=PlainCodecs(down="uniform3"))


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [("near",), pytest.param(("near", "far"), marks=pytest.mark.full)])
def test_a_trainer_that_is_killed_loses_nothing_that_members_lack_of_weights(trainers, tmp_path):
    with Running(tmp_path, trainers, more=dict.fromkeys(range(SIZE), CODED_WEIGHTS)) as running:
        started = {name: running.trainer(name) for name in trainers}
        members = [running.member(rank) for rank in range(SIZE)]
        trainer, said = started[trainers[-1]]
        said.first_event("checkpoint of a group", least_step=4)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        _, again = running.trainer(trainers[-1])
        assert again.first_event("a group begins")["step"] >= 4
        running.assert_whole(members, codecs=PlainCodecs(down="uniform3"))


@pytest.mark.full
def test_a_member_that_is_killed_between_two_steps_has_nothing_left_of_its_codec(tmp_path):
    first, gate = 10, tmp_path / "gate"
    reads = 32 * (1 + first)  # one batch of 32 tells what samples are like
    with Running(tmp_path, more={0: CODED, 1: [*CODED, gated(gate, reads)]}) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=first)
        members[1][0].send_signal(signal.SIGKILL)
        members[1][0].wait()
        gate.touch()
        members[1] = running.member(1)
        assert said.first_event("what its codec had left of its gradients is lost", least_step=first)["step"] == first
        running.assert_whole(members, codecs=PlainCodecs("uniform3", lost=[(1, first)]))


@pytest.mark.slow
def test_a_trainer_that_is_killed_leaves_no_member_anything_of_its_codec(tmp_path):
    with Running(tmp_path, more=dict.fromkeys(range(SIZE), CODED)) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        _, again = running.trainer()
        step = again.first_event("a group begins")["step"]
        running.assert_whole(members, codecs=PlainCodecs("uniform3", lost=[(rank, step) for rank in range(SIZE)]))


def write_no_more_than(limit_bytes, process):
    """Have no file of a process grow beyond so many bytes, as on a disk that is full."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_group_whose_trainer_can_write_nothing_says_so_goes_on_and_keeps_what_it_can_write_again(tmp_path):
    with Running(tmp_path, more=SLOWLY) as running:
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group")
        write_no_more_than(0, trainer)
        assert "File too large" in said.first_event("checkpoint of a group not written")["reason"]
        write_no_more_than(resource.RLIM_INFINITY, trainer)
        said.first_event("checkpoint of a group")
        running.assert_whole(members)


@pytest.mark.slow
def test_members_that_come_while_their_trainer_s_disk_is_full_say_so_and_begin_once_there_is_room(tmp_path):
    with Running(tmp_path, more=SLOWLY) as running:
        trainer, _ = running.trainer()
        write_no_more_than(0, trainer)
        members = [running.member(rank) for rank in range(SIZE)]
        for rank, (_, said) in enumerate(members):
            assert "is its disk full?" in said.first_event("trainer away; trying again")["reason"]
            assert "is its disk full?" in running.status(rank)
        write_no_more_than(resource.RLIM_INFINITY, trainer)
        running.assert_whole(members)
