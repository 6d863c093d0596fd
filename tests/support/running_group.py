"""A group of real processes, some of which tests kill: trainers, and members of which some have flags of their own."""

import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.training.step_log import merged_ranks
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.support.commands import command
from tests.support.forked import Forked
from tests.support.group_flags import ACCEPTING, SHARD, group_of, member_flags, trainers_at
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import ALLOWED, agent_process, edge_config, heard_trainer_process, held_port
from tests.support.samples import Slow

STEPS = 40
SIZE = 2
SLOW_SECONDS = 0.01
SLOWLY = {
    rank: [f'data.train={{factory="tests.support.samples:Slow", kwargs={{seconds={SLOW_SECONDS}}}}}']
    for rank in range(SIZE)
}
"""Members that take long enough for a step to be steered."""
LEFT = re.compile(r"left its group at step (\d+) of 40; the next run goes on with the group")

WITHOUT_THE_LATE = [f'groups=[{{name="line", size={SIZE}, leave_out_seconds=3.0, checkpoint_steps=2}}]', ACCEPTING]
"""Flags of a trainer whose group goes on without late members."""


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
        """Start a member that is killed when it comes to a function for the nth time, and return its process.

        Started again by `member`, it has its rows.
        """
        planned = [Planned("member", Fault.KILL_AGENT, point, nth)]
        rows = f"output.directory={self.folder / f'member-{rank}'}"
        flags, name = [*self._flags(rank), rows, control_off()], f"killed-member-{rank}"
        process = Forked(sides.member, flags, name, planned, self.folder, stderr=subprocess.DEVNULL)
        self.stack.callback(process.kill)
        return process

    def killed_and_back(self, killed, least_step):
        """Kill the trainer, or the second member, after a checkpoint, and start it again; return the members.

        killed: "trainer" or "member".
        """
        trainer, said = self.trainer()
        members = [self.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=least_step)
        victim = trainer if killed == "trainer" else members[1][0]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        if killed == "trainer":
            self.trainer()
        else:
            members[1] = self.member(1)
        return members

    def leave(self, rank):
        """Have a member leave the group."""
        command(agent_app, "drain", "--leave", f"--control={self._socket(rank)}")

    def status(self, rank):
        """Return what a member shows an operator."""
        return command(agent_app, "status", "--json", f"--control={self._socket(rank)}")

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


def ranks_in(log):
    """Read who took part, by step, block and slice."""
    return merged_ranks((log / "line-group.steps").read_text().splitlines())


class Gated(Slow):
    """Digits, of which a few are given before a file is there."""

    def __init__(self, before, file, seconds):
        super().__init__(seconds)
        self._left, self._file = before, Path(file)

    def __getitem__(self, index):
        self._left -= 1
        while self._left < 0 and not self._file.exists():
            time.sleep(0.01)
        return super().__getitem__(index)


def gated(gate, before, seconds=0.0):
    """Return the flag of a member that reads so many samples before a file is there, and is slow."""
    return f'data.train={{factory="{__name__}:Gated", kwargs={{before={before}, file="{gate}", seconds={seconds}}}}}'


def joined_late(running, gate):
    """Have the last member begin after others have trained without it, and all train to their end; return them.

    gate: the file for which the first member waits, so that the group is not done before.
    """
    _, said = running.trainer()
    members = [running.member(0)]
    said.first_event("checkpoint of a group", least_step=2)
    members.append(running.member(1))
    while said.first_event("a member begins")["rank"] != 1:
        pass
    gate.touch()
    for process, last in members:
        assert process.wait(120) == 0, last
    return members
