"""Groups of real processes of which some are killed: members and trainers; they end as if nothing had happened."""

import json
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import ExitCode
from shared.training.step_log import merged_ranks
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.integration.training.test_groups import ACCEPTING, SHARD, group_of, member_flags, trainers_at
from tests.support.commands import command
from tests.support.forked import Forked
from tests.support.group_members import PlainCodecs, group_state
from tests.support.plain import assert_same_bits
from tests.support.running import ALLOWED, agent_process, edge_config, heard_trainer_process, held_port
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 40
SIZE = 2
SLOWLY = {rank: ['data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.01}}'] for rank in range(SIZE)}
"""Members that take long enough for a step to be steered."""


class Running:
    """Trainers with a group, and its members, each a process."""

    def __init__(self, folder, trainers=("near",), more=None, group=None, step_logs=None):
        """more: further flags of members, by rank. group: of the trainers. step_logs: their folders of logs, by name."""
        self.more, self.group, self.step_logs = more or {}, group or group_of(SIZE), step_logs or {}
        self.stack = ExitStack()
        self.folder = folder
        self.ports = {name: self.stack.enter_context(held_port()) for name in trainers}
        self.configs = [edge_config(*self._flags(rank)) for rank in range(SIZE)]

    def _flags(self, rank):
        more = [*self.more.get(rank, []), SHARD, "compute.threads=1", f"training.max_steps={STEPS}"]
        addresses = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        return [*member_flags(rank, size=SIZE, more=more), *trainers_at(**addresses)]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def trainer(self, name="near"):
        """Start a trainer."""
        process, _, said = self.stack.enter_context(heard_trainer_process(*self._trainer_flags(name)))
        return process, said

    def trainer_killed_at(self, point, name="near", nth=1):
        """Start a trainer that is killed when it comes to a function for the nth time, and return its process."""
        return self.trainer_with(Fault.KILL_TRAINER, point, name, nth)

    def trainer_with(self, fault, point, name="near", nth=1):
        """Start a trainer to which a fault happens when it comes to a function for the nth time, and return its process."""
        planned = [Planned("trainer", fault, point, nth)]
        flags = [*self._trainer_flags(name), f"models.allowed={ALLOWED}"]
        process = Forked(sides.trainer, flags, "trainer", planned, self.folder, stderr=subprocess.DEVNULL)
        self.stack.callback(process.kill)
        return process

    def _trainer_flags(self, name):
        location = f"checkpoints.location={self.folder / name}"
        listen = f"server.listen=127.0.0.1:{self.ports[name]}"
        log = [f"checkpoints.step_log={self.step_logs[name]}"] if name in self.step_logs else []
        return [*self.group, *log, "compute.threads=1", listen, location, control_off()]

    def member(self, rank):
        """Start a member."""
        return self.stack.enter_context(
            agent_process(
                *self._flags(rank), f"control.listen={self._socket(rank)}", output=self.folder / f"member-{rank}"
            )
        )

    def member_killed_at(self, point, rank, nth=1):
        """Start a member that is killed when it comes to a function for the nth time, and return its process."""
        planned = [Planned("member", Fault.KILL_AGENT, point, nth)]
        flags, name = [*self._flags(rank), control_off()], f"killed-member-{rank}"
        process = Forked(sides.member, flags, name, planned, self.folder, stderr=subprocess.DEVNULL)
        self.stack.callback(process.kill)
        return process

    def leave(self, rank):
        """Have a member leave the group."""
        command(agent_app, "drain", "--leave", f"--control={self._socket(rank)}")

    def _socket(self, rank):
        return f"unix:{self.folder}/member-{rank}.sock"

    def assert_whole(self, members, took_part=None, codecs=None):
        """Wait for the members, by rank from 0 on, and compare their models with those of one loop; see `accumulated`."""
        for process, said in members:
            assert process.wait(120) == 0, said
        expected = group_state(self.configs, took_part, codecs)
        for rank in range(len(members)):
            assert_same_bits(expected, load_file(self.folder / f"member-{rank}" / "model.safetensors"))


def control_off():
    """Return the flag of a process that no operator steers."""
    return "control.listen=none"


@pytest.mark.parametrize(
    ("killed", "by"),
    [
        (0, signal.SIGKILL),
        pytest.param(1, signal.SIGKILL, marks=pytest.mark.slow),
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("cloud_trainer.groups.trained_group:TrainedGroup.occupy", marks=pytest.mark.slow),
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


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trainer_that_is_killed_before_it_has_forgotten_a_group_begins_the_next_training_anew(tmp_path):
    with Running(tmp_path) as running:
        trainer = running.trainer_killed_at("cloud_trainer.groups.group_store:GroupStore.forget")
        running.assert_whole([running.member(rank) for rank in range(SIZE)])
        assert trainer.wait(60) == -signal.SIGKILL
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        assert said.first_event("a group begins")["step"] == 0
        running.assert_whole(members)


@pytest.mark.slow
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


LEFT = re.compile(r"left its group at step (\d+) of 40; the next run goes on with the group")


def ranks_in(log):
    """Read who took part, by step, block and slice."""
    return merged_ranks((log / "line-group.steps").read_text().splitlines())


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


@pytest.mark.slow
@pytest.mark.parametrize("killed", [pytest.param("near", marks=pytest.mark.slow), "far"])
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


@pytest.mark.slow
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


class Gated:
    """Digits, of which a few are given before a file is there."""

    def __init__(self, before, file):
        self._samples, self._left, self._file = FlatDigits(), before, Path(file)

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, index):
        self._left -= 1
        while self._left < 0 and not self._file.exists():
            time.sleep(0.01)
        return self._samples[index]


def test_a_run_that_goes_on_without_a_late_member_equals_the_loop_that_reads_its_log(tmp_path):
    gate, logs = tmp_path / "gate", tmp_path / "logs"
    slow = f'data.train={{factory="{__name__}:Gated", kwargs={{before=200, file="{gate}"}}}}'
    leaving_out = [f'groups=[{{name="line", size={SIZE}, leave_out_seconds=3.0, checkpoint_steps=2}}]', ACCEPTING]
    with Running(tmp_path, more={0: [slow]}, group=[*leaving_out, f"checkpoints.step_log={logs}"]) as running:
        _, said = running.trainer()
        members = [running.member(0)]
        said.first_event("checkpoint of a group", least_step=2)
        members.append(running.member(1))
        while said.first_event("a member begins")["rank"] != 1:
            pass
        gate.touch()
        for process, last in members:
            assert process.wait(120) == 0, last
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


@pytest.mark.slow
def test_a_member_that_is_killed_between_two_steps_has_nothing_left_of_its_codec(tmp_path):
    first, gate = 10, tmp_path / "gate"
    reads = 32 * (1 + first)  # one batch of 32 tells what samples are like
    gated = f'data.train={{factory="{__name__}:Gated", kwargs={{before={reads}, file="{gate}"}}}}'
    with Running(tmp_path, more={0: CODED, 1: [*CODED, gated]}) as running:
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
