"""Faults that can happen, by name, and the points at which they do. A point is a function of the product; a fault
happens when it is called.

Nothing of the product knows of this: a process that is to suffer has its functions wrapped when it starts.
"""

import enum
import errno
import functools
import importlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Fault(enum.Enum):
    """Each is counted by kind."""

    KILL_AGENT = "kill -9 of the agent"
    KILL_TRAINER = "kill -9 of the trainer"
    KILL_STATELESS = "kill -9 without a state"
    """A trainer that owns no changing block is killed: nobody goes back."""
    KILL_IN_MIGRATION = "kill -9 in a migration"
    KILL_IN_CHECKPOINT = "kill -9 in a checkpoint"
    KILL_IN_JOINING = "kill -9 while one joins"
    """A newcomer of a group is killed, or one of its trainers, between its first call and its first step."""
    DEATH = "dead until it is replaced"
    """A trainer of a run among candidates is killed, and begins again only once others go on without it."""
    LOST_WAY = "lost way to a trainer"
    """The device reaches a trainer no more, and other trainers do: one of them carries the bytes."""
    LOST_RELAY = "lost relay"
    """The stream with these bytes ends in mid-step."""
    KILL_RELAYING = "kill -9 on the way"
    """The trainer that carries these bytes is killed."""
    LOST_DISK = "lost disk"
    """A trainer is killed and comes back with nothing of what it had written."""
    STALL = "stalled process"
    """A member is stopped (SIGSTOP) for longer than links wait for a silent peer, and goes on (SIGCONT)."""
    DISK_FULL = "disk full"
    FAILED_FSYNC = "failed fsync"
    CLOCK_JUMP = "clock jump"
    DUPLICATE_FRAME = "duplicate frame"
    DROP_LINK = "lost link"
    HALF_OPEN = "half-open link"
    DELAY = "delay"
    CORRUPT = "corrupt bytes"


LOST_DISKS = 2
"""Maximum number of disks that are lost in a run: a worker that has lost one has to keep replicas again before the next
loss."""
STALLED_SECONDS = 1.5
"""Longer than a link waits for a silent peer, and shorter than a session waits for its member."""
LINK_FAULTS = (Fault.DROP_LINK, Fault.HALF_OPEN, Fault.DELAY, Fault.CORRUPT)

_FSYNC, _RENAME = "os:fsync", "pathlib:Path.replace"
POINTS: dict[tuple[str, Fault], tuple[str, ...]] = {
    ("agent", Fault.KILL_AGENT): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.client.trainer:TrainerClient.join_session",
        "shared.client.trainer:TrainerClient.link",
        "edge_agent.training.evaluation:Evaluator.evaluate",
        "edge_agent.sessions.trainer_worker:TrainerWorker.restore",
        "edge_agent.sessions.open_session:OpenSession.collect",
        "edge_agent.sessions.open_session:OpenSession.close",
        "edge_agent.sessions.stored_session:StoredSession._write",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("agent", Fault.KILL_IN_MIGRATION): (
        "edge_agent.sessions.trainer_worker:TrainerWorker.take",
        "edge_agent.sessions.trainer_worker:TrainerWorker.offered",
        "edge_agent.sessions.trainer_worker:TrainerWorker.download",
        "edge_agent.sessions.trainer_worker:TrainerWorker.commit",
        "edge_agent.sessions.trainer_worker:TrainerWorker.dial",
        "shared.training.held_blocks:HeldBlocks.hold",
        "shared.runtime.placed_worker:PlacedWorker.place",
    ),
    ("agent", Fault.KILL_IN_CHECKPOINT): ("edge_agent.sessions.device_worker:copy_part", _FSYNC, _RENAME),
    ("agent", Fault.DISK_FULL): (_FSYNC,),
    ("agent", Fault.FAILED_FSYNC): (_FSYNC,),
    ("agent", Fault.CLOCK_JUMP): ("shared.execution.blocks:PlacedBlocks.forward",),
    ("agent", Fault.DUPLICATE_FRAME): ("shared.transport.stream.duplex:Duplex.write",),
    ("evaluating", Fault.KILL_AGENT): (
        "edge_agent.sessions.stored_session:StoredSession.keep_best",
        "edge_agent.observability.history_keeper:HistoryKeeper._add",
        "edge_agent.observability.history_keeper:HistoryKeeper._show",
    ),
    ("detour", Fault.KILL_AGENT): (
        "edge_agent.training.relayed_trainers:RelayedTrainers._go",
        "edge_agent.training.relayed_trainers:RelayedTrainers._hand_over",
        "shared.client.relay_socket:RelaySocket.open",
        "shared.client.relay_socket:RelaySocket.close",
    ),
    ("relaying", Fault.KILL_RELAYING): (
        "cloud_trainer.rpc.relays:_opening",
        "cloud_trainer.rpc.relays:_connected",
        "cloud_trainer.rpc.relays:_data",
    ),
    ("relaying", Fault.LOST_RELAY): ("cloud_trainer.rpc.relays:_data",),
    ("trainer", Fault.KILL_TRAINER): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.execution.blocks:PlacedBlocks.update",
        "shared.execution.blocks:PlacedBlocks.evaluate",
        "cloud_trainer.sessions.session:Session.join",
        "cloud_trainer.sessions.worker.session_worker:SessionWorker.restore",
        "cloud_trainer.sessions.session_store:SessionStore.keep_record",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("stateless", Fault.KILL_STATELESS): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.execution.blocks:PlacedBlocks.take_weights",
        "cloud_trainer.sessions.session:Session.join",
        "cloud_trainer.sessions.worker.session_worker:SessionWorker.begin_again",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("member", Fault.KILL_AGENT): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.client.trainer:TrainerClient.open_session",
        "shared.client.trainer:TrainerClient.join_session",
        "shared.client.trainer:TrainerClient.link",
        "edge_agent.sessions.trainer_worker:TrainerWorker.begin_in_group",
        "edge_agent.sessions.open_session:OpenSession.collect",
        "edge_agent.sessions.open_session:OpenSession.close",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("member", Fault.DUPLICATE_FRAME): ("shared.transport.stream.duplex:Duplex.write",),
    ("group", Fault.KILL_TRAINER): (
        "cloud_trainer.groups.trained_group:TrainedGroup.occupy",
        "cloud_trainer.groups.trained_group:TrainedGroup.begin",
        "cloud_trainer.groups.trained_group:TrainedGroup.take_gradient",
        "cloud_trainer.groups.trained_group:TrainedGroup.vacate",
        "cloud_trainer.groups.merging:Merging.merge",
        "cloud_trainer.sessions.worker.session_worker:SessionWorker.begin_in_group",
        "cloud_trainer.groups.group:Group.merge",
        "shared.training.held_blocks:HeldBlocks.update",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("group", Fault.KILL_IN_CHECKPOINT): (
        "cloud_trainer.groups.group_store:GroupStore.load",
        "cloud_trainer.groups.group_store:GroupStore.write_members",
        "cloud_trainer.groups.group_store:GroupStore.begin_life",
        _FSYNC,
        _RENAME,
    ),
    ("stalling", Fault.STALL): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.execution.blocks:PlacedBlocks.take_weights",
        "shared.runtime.block_form:BlockForm.encode",
        "shared.runtime.outbox:Outbox.resume",
        "shared.transport.stream.duplex:Duplex.write",
        "shared.client.trainer:TrainerClient.join_session",
        "shared.client.trainer:TrainerClient.link",
        "edge_agent.sessions.trainer_worker:TrainerWorker.begin_in_group",
    ),
    ("judging", Fault.KILL_AGENT): ("edge_agent.sessions.trainer_worker:TrainerWorker.leave_group",),
    ("ending", Fault.KILL_TRAINER): (
        "cloud_trainer.groups.trained_group:TrainedGroup.leave",
        "cloud_trainer.groups.merge_loop:MergeLoop.end",
        "cloud_trainer.groups.merging:Merging.end",
        "cloud_trainer.groups.group_store:GroupStore.note_finished",
    ),
    ("slices", Fault.KILL_TRAINER): ("shared.training.held_blocks:HeldBlocks.update_slice",),
    ("giving", Fault.KILL_AGENT): ("shared.runtime.block_form:BlockForm.encode",),
    ("newcomer", Fault.KILL_AGENT): (
        "shared.execution.blocks:PlacedBlocks.forward",
        "shared.execution.blocks:PlacedBlocks.backward",
        "shared.transport.stream.duplex:Duplex.write",
    ),
    ("newcomer", Fault.KILL_IN_JOINING): (
        "shared.client.trainer:TrainerClient.open_session",
        "edge_agent.sessions.trainer_worker:TrainerWorker.begin_in_group",
        "edge_agent.sessions.trainer_worker:TrainerWorker.join_group",
        "edge_agent.sessions.open_session:OpenSession.collect",
        "shared.client.trainer:TrainerClient.link",
    ),
    ("admitting", Fault.KILL_IN_JOINING): (
        "cloud_trainer.groups.trained_group:TrainedGroup.join",
        "cloud_trainer.groups.trained_group:TrainedGroup.reach",
        "cloud_trainer.groups.newcomers:Newcomers.join",
    ),
    ("group", Fault.DISK_FULL): (_FSYNC,),
    ("group", Fault.FAILED_FSYNC): (_FSYNC,),
    ("group", Fault.CLOCK_JUMP): ("cloud_trainer.groups.merging:Merging.merge",),
    ("trainer", Fault.KILL_IN_MIGRATION): (
        "cloud_trainer.sessions.blocks:SessionBlocks.take",
        "cloud_trainer.sessions.worker.session_worker:SessionWorker.commit",
        "cloud_trainer.sessions.session:Session.dial",
        "cloud_trainer.rpc.offered_blocks:OfferedBlocks.offer_blocks",
        "cloud_trainer.rpc.offered_blocks:OfferedBlocks.fetch_blocks",
        "shared.training.held_blocks:HeldBlocks.hold",
    ),
    ("trainer", Fault.KILL_IN_CHECKPOINT): (
        "cloud_trainer.sessions.blocks:copy_part",
        "cloud_trainer.sessions.session_store:SessionStore.load_block",
        "cloud_trainer.sessions.session_store:SessionStore.save_replica",
        _FSYNC,
        _RENAME,
    ),
    ("trainer", Fault.DISK_FULL): (_FSYNC,),
    ("trainer", Fault.FAILED_FSYNC): (_FSYNC,),
    ("trainer", Fault.CLOCK_JUMP): ("shared.execution.blocks:PlacedBlocks.update",),
    ("trainer", Fault.DUPLICATE_FRAME): ("shared.transport.stream.duplex:Duplex.write",),
}
BETWEEN_TRAINERS = {
    "edge_agent.sessions.trainer_worker:TrainerWorker.dial",
    "edge_agent.sessions.trainer_worker:TrainerWorker.offered",
    "cloud_trainer.sessions.session:Session.dial",
    "cloud_trainer.rpc.offered_blocks:OfferedBlocks.offer_blocks",
    "cloud_trainer.rpc.offered_blocks:OfferedBlocks.fetch_blocks",
    "cloud_trainer.sessions.session_store:SessionStore.save_replica",
}
"""The points that a run with one trainer never comes to; a fault that is planned there would keep back all after it."""
MOST_CALLS: dict[Fault | str, int] = {
    Fault.KILL_IN_MIGRATION: 2,
    Fault.KILL_IN_CHECKPOINT: 6,
    Fault.KILL_IN_JOINING: 1,
    Fault.DISK_FULL: 6,
    Fault.FAILED_FSYNC: 6,
    **dict.fromkeys(POINTS["detour", Fault.KILL_AGENT], 2),
    **dict.fromkeys(POINTS["evaluating", Fault.KILL_AGENT], 3),
    **dict.fromkeys((*POINTS["judging", Fault.KILL_AGENT], *POINTS["ending", Fault.KILL_TRAINER]), 1),
    "shared.training.held_blocks:HeldBlocks.update_slice": 60,
    "shared.runtime.block_form:BlockForm.encode": 60,
    "cloud_trainer.rpc.relays:_opening": 3,
    "cloud_trainer.rpc.relays:_connected": 3,
    "cloud_trainer.rpc.relays:_data": 40,
}
"""Maximum calls of its point that a fault waits for, by the point or else the fault; there are fewer or more of these in a run
than of others."""


@dataclass(frozen=True)
class Planned:
    """A fault that happens at the `call`-th call of `point`, counted from the fault of the same side before it."""

    side: str
    fault: Fault
    point: str
    call: int


def plan(dice: random.Random, side: str, count: int, trainers: int) -> list[Planned]:
    """Faults of one side of a run with so many trainers, in the order in which they are to happen."""
    planned = []
    for _ in range(count):
        kinds = [fault for of, fault in POINTS if of == side]
        if trainers > 1 and (side, Fault.KILL_IN_MIGRATION) in POINTS:
            kinds += [Fault.KILL_IN_MIGRATION] * 2  # few of its points are reached often
        fault = dice.choice(kinds)
        point = dice.choice([at for at in POINTS[side, fault] if trainers > 1 or at not in BETWEEN_TRAINERS])
        most = MOST_CALLS.get(point, MOST_CALLS.get(fault, 12))
        planned.append(Planned(side, fault, point, dice.randint(1, most)))
    return planned


def resolve(point: str) -> tuple[Any, str]:
    """Return the object that holds the function of a point, and the function's name. Raises AttributeError where there
    is none."""
    module, _, path = point.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    getattr(owner, name)
    return owner, name


class Saboteur:
    """Makes the planned faults happen in this process, those of a side one after the other, each written down before it does.
    The sides of a process do not wait for each other."""

    def __init__(self, planned: list[Planned], fired: Path) -> None:
        self._left = {side: [step for step in planned if step.side == side] for side in {step.side for step in planned}}
        self._fired = fired
        self._calls = Counter[str]()
        for point in {step.point for step in planned}:
            self._wrap(point)

    def _wrap(self, point: str) -> None:
        owner, name = resolve(point)
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def call(*arguments: Any, **more: Any) -> Any:
            for side, left in self._left.items():
                if left and left[0].point == point:
                    self._calls[side] += 1
                    if self._calls[side] >= left[0].call and _possible(left[0], arguments):
                        due = left.pop(0)
                        self._calls[side] = 0
                        self._write_down(due)
                        return _happen(due.fault, original, arguments, more)
            return original(*arguments, **more)

        setattr(owner, name, call)

    def _write_down(self, due: Planned) -> None:
        handle = os.open(self._fired, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{due.side} {due.fault.name} {due.point}\n".encode())
        os.close(handle)


def _possible(due: Planned, arguments: tuple[Any, ...]) -> bool:
    return due.fault is not Fault.DUPLICATE_FRAME or bool(arguments[1].frames)


def _happen(fault: Fault, original: Callable[..., Any], arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
    match fault:
        case Fault.DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case Fault.FAILED_FSYNC:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        case Fault.LOST_RELAY:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        case Fault.CLOCK_JUMP:
            real = time.time
            time.time = lambda: real() + 1e7
        case Fault.STALL:
            waker = f"sleep {STALLED_SECONDS}; kill -CONT {os.getpid()}"
            subprocess.Popen(["/bin/sh", "-c", waker])
            os.kill(os.getpid(), signal.SIGSTOP)
        case Fault.DUPLICATE_FRAME:
            return _twice(original, *arguments)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **more)


async def _twice(write: Callable[..., Any], stream: Any, message: Any, payload: Any = b"") -> None:
    again = type(message)()
    again.CopyFrom(message)
    await write(stream, message, payload)
    await write(stream, again, payload)
