"""`make demo-groups`: three members and a trainer, four real processes on loopback, train one model as a group.

Each member has a third of every batch. In the middle one member is killed and started again; the others wait for it. In the end
all have the same model. Nothing is left running, whatever ends it.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cloud_trainer.control.service import SERVICE
from cloud_trainer.control.tables import group_table
from edge_agent.demo import processes
from shared.control.calling import ControlService, calling
from shared.wire.isthmus.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3
LOST, LOST_AT = 1, 1 / 3
"""The member that is killed, and the part of the steps after which it is."""
FOLDER = Path("run/demo-groups")
LOOK_SECONDS = 0.05
FLAGS = ("training.epochs=6", "data.batch_size=16", "control.listen=none", 'data.shard="rank"', "log.level=warning")


def main() -> int:
    """Train, with a member lost in the middle; returns the exit code."""
    processes.end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            control = f"unix:{folder}/control.sock"
            flags = (
                f'groups=[{{name="demo", size={SIZE}, checkpoint_steps=50}}]',
                "server.accept_inputs=true",
                f"control.listen={control}",
                f"checkpoints.location={folder}/trainer",
            )
            trainer, address = stack.enter_context(processes.running_trainer(Path(folder) / "address", *flags))
            print(f"trainer: process {trainer.pid} at {address}", flush=True)
            members = {rank: stack.enter_context(_member(rank, address)) for rank in range(SIZE)}
            with calling(control, "trainer", SERVICE) as service:
                _lose_one(service, members, address, stack)
            codes = [member.wait() for member in members.values()]
            return max(codes, key=abs) or _compare()
    except KeyboardInterrupt:
        return 130


@contextmanager
def _member(rank: int, address: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A member, stopped on the way out."""
    group = f'group={{name="demo", rank={rank}, size={SIZE}}}'
    given = (f"--config={processes.FILES / 'edge.toml'}", f"--trainer={address}", f"--output={_folder(rank)}")
    settings = (*FLAGS, group, 'privacy.gradients_to=["trainer"]')
    command = [processes.script("edge-agent"), "run", *given, *(f"--set={flag}" for flag in settings), *sys.argv[1:]]
    member = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    print(f"member {rank}: process {member.pid}", flush=True)
    try:
        yield member
    finally:
        member.terminate()
        member.wait()


def _lose_one(
    service: ControlService, members: "dict[int, subprocess.Popen[bytes]]", address: str, stack: ExitStack
) -> None:
    """Kill a member once a part of the steps is done, show the group, and start the member again."""
    while not (group := _group(service)).steps or group.step < LOST_AT * group.steps:
        if any(member.poll() is not None for member in members.values()):
            return  # one has failed, and has said why
        time.sleep(LOOK_SECONDS)
    members[LOST].kill()
    members[LOST].wait()
    print(f"step {group.step}: member {LOST} is killed", flush=True)
    group = _group(service)
    while [member.rank for member in group.members if member.awaited] != [LOST]:
        time.sleep(LOOK_SECONDS)
        group = _group(service)
    Console().print(group_table(group))
    members[LOST] = stack.enter_context(_member(LOST, address))


def _group(service: ControlService) -> pb.GroupStatus:
    return service.call("ListGroups").groups[0]


def _compare() -> int:
    """Say whether all members have one model, and how well it does; returns the exit code."""
    digests = {hashlib.sha256((_folder(rank) / "model.safetensors").read_bytes()).hexdigest() for rank in range(SIZE)}
    summary = json.loads((_folder(0) / "summary.json").read_text())
    print(f"{summary['steps']} steps; accuracy {summary['accuracy']:.3f}")
    print("all members have the same model, bit for bit" if len(digests) == 1 else "the members' models differ")
    return len(digests) != 1


def _folder(rank: int) -> Path:
    return FOLDER / f"member-{rank}"


if __name__ == "__main__":
    sys.exit(main())
