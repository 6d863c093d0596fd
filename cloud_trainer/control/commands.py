"""`cloud-trainer status`, `sessions` and the others: calls of the control service of the trainer that runs on this machine."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Column, Table

from isthmus_entry_points import importing
from shared.control.choices import SOON_SECONDS
from shared.control.commands import ControlCall, ControlCommands, Interval, Level, every
from shared.control.formatting import session_column, size, time_text, word
from shared.wire.isthmus.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from cloud_trainer.config import TrainerConfig


def trainer_config() -> "type[TrainerConfig]":
    """Import the class of the configuration: no --help needs it."""
    with importing("cloud-trainer"):
        from cloud_trainer.config import TrainerConfig
    return TrainerConfig


_TRAINER = ControlCommands("cloud-trainer", "trainer", trainer_config, "TrainerControlService")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (status, watch, sessions, groups, free, close, drain):
        app.command()(command)
    app.command("log-level")(log_level)


@_TRAINER.command
def status(trainer: ControlCall) -> None:
    """Show what the running trainer does, and its open sessions."""
    answer = trainer.service.GetStatus(pb.TrainerControlServiceGetStatusRequest(), timeout=SOON_SECONDS)
    trainer.show(answer, Group(status_table(answer.status), sessions_table(answer.status.sessions)))


@_TRAINER.command
def watch(trainer: ControlCall, interval: Interval = 1.0) -> None:
    """Show it again and again, a line each, until the trainer stops."""
    for answer in trainer.service.Watch(pb.TrainerControlServiceWatchRequest(interval=every(interval))):
        trainer.show(answer, status_line(answer.status))


@_TRAINER.command
def sessions(trainer: ControlCall) -> None:
    """List the sessions of the running trainer: open ones, and those that only have checkpoints left."""
    answer = trainer.service.ListSessions(pb.TrainerControlServiceListSessionsRequest(), timeout=SOON_SECONDS)
    trainer.show(answer, sessions_table(answer.sessions))


@_TRAINER.command
def groups(trainer: ControlCall) -> None:
    """List the groups of devices that train here, with their members, and for whom the present step waits."""
    answer = trainer.service.ListGroups(pb.ListGroupsRequest(), timeout=SOON_SECONDS)
    tables = [group_table(group) for group in answer.groups]
    trainer.show(answer, Group(*tables) if tables else "no groups are configured ([[groups]])")


@_TRAINER.command
def free(
    trainer: ControlCall,
    group: Annotated[str, typer.Argument(help="The group's name.")],
    rank: Annotated[int, typer.Argument(help="The rank.", min=0)],
) -> None:
    """End the session of a rank of a group, and have the rank be anybody's who may be a member."""
    answer = trainer.service.FreeRank(pb.FreeRankRequest(group=group, rank=rank), timeout=SOON_SECONDS)
    before = "is free" if answer.had_owner else "was nobody's"
    trainer.show(answer, f"rank {rank} of group {group} {before}")


@_TRAINER.command
def close(
    trainer: ControlCall,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    resumable: Annotated[bool, typer.Option("--resumable", help="Keep its record and checkpoints.")] = False,
) -> None:
    """End a session; unless it is to be resumable, it is gone for good."""
    request = pb.TrainerControlServiceCloseSessionRequest(session_id=session, resumable=resumable)
    answer = trainer.service.CloseSession(request, timeout=SOON_SECONDS)
    fate = "its checkpoints are kept" if resumable else "nothing is kept of it"
    trainer.show(answer, f"session {session} is closed; {fate}")


@_TRAINER.command
def drain(trainer: ControlCall) -> None:
    """Stop the trainer as SIGTERM does: edges take a checkpoint, and wait for it to come back."""
    answer = trainer.service.Drain(pb.TrainerControlServiceDrainRequest(), timeout=SOON_SECONDS)
    trainer.show(answer, "the trainer stops when its edges have taken a checkpoint")


@_TRAINER.command
def log_level(trainer: ControlCall, level: Level) -> None:
    """Log more or less, until the trainer ends."""
    trainer.set_level(pb.TrainerControlServiceSetLogLevelRequest, level)


def status_table(status: pb.TrainerStatus) -> Table:
    """The trainer without its sessions."""
    table = Table(title=f"trainer at {status.address}", show_header=False)
    table.add_row("state", f"[bold]{_state(status)}[/bold], {time_text(status.running)}, on {status.device}")
    table.add_row("sessions", f"{status.open_sessions} of {status.max_sessions}")
    table.add_row("done", f"{status.steps} steps, {status.samples} samples")
    table.add_row("waiting", f"{status.queues.compute} steps to go on with, {status.queues.send} to send")
    for group in status.groups_that_wait:
        late = ", ".join(_late(member) for member in group.members if member.HasField("late_for"))
        table.add_row("group", f"{group.name} waits at step {group.step} for {late}")
    table.add_row("moved", f"{size(status.bytes_up)} up, {size(status.bytes_down)} down")
    table.add_row("log level", word(pb.LogLevel.Name(status.log_level), "LOG_LEVEL_"))
    return table


def status_line(status: pb.TrainerStatus) -> str:
    """The most of it on one line."""
    return (
        f"{_state(status)}: {status.open_sessions} of {status.max_sessions} sessions, {status.steps} steps, "
        f"{size(status.bytes_up)} up, {size(status.bytes_down)} down"
    )


def sessions_table(sessions: Iterable[pb.TrainerSessionStatus]) -> Table:
    """Sessions, in few columns: a terminal has eighty."""
    table = Table(session_column(), Column("model", overflow="fold"), Column("state", no_wrap=True), show_lines=True)
    for session in sessions:
        whose = f"\nof {session.subject}" if session.subject else ""
        part_of = f"\nof run\n{session.run_id}" if session.run_id else ""
        table.add_row(f"{session.session_id}{part_of}", f"{session.model}{whose}", "\n".join(_progress(session)))
    return table


def group_table(group: pb.GroupStatus) -> Table:
    """A group, a row for each rank."""
    count = sum(member.takes_part for member in group.members)
    table = Table(
        Column("rank", justify="right"),
        Column("member", overflow="fold"),
        Column("step", justify="right"),
        Column("left out", justify="right"),
        Column("late", justify="right"),
        Column("awaited"),
        title=f"{group.name}: step {group.step} of {group.steps or '?'}, {count} members",
    )
    for member in group.members:
        link = "linked" if member.linked else "away" if member.takes_part else "none"
        whose = f" ({subject})" if (subject := member.subject or member.owner) else ""
        awaited = f"for {time_text(member.late_for)}" if member.HasField("late_for") else "yes"
        step = str(member.step) if member.linked else ""
        counts = (str(count) for count in (member.left_out, member.late))
        table.add_row(str(member.rank), f"{link}{whose}", step, *counts, awaited if member.awaited else "")
    return table


def _late(member: pb.GroupMemberStatus) -> str:
    subject = member.subject or member.owner
    return f"rank {member.rank}{f' ({subject})' if subject else ''} for {time_text(member.late_for)}"


def _progress(session: pb.TrainerSessionStatus) -> list[str]:
    state = word(pb.TrainerSessionState.Name(session.state), "TRAINER_SESSION_STATE_")
    lines = [f"{state}, step {session.step}"]
    if session.HasField("deployment"):
        today = session.deployment
        lines.append(f"blocks {session.held_blocks}, K {today.staleness_limit}, {today.bits} bits")
    if session.missing_links:
        lines.append(f"no link to {', '.join(session.missing_links)}")
    if session.checkpoint_steps:
        lines += ["checkpoints", ", ".join(map(str, session.checkpoint_steps))]
    return lines


def _state(status: pb.TrainerStatus) -> str:
    return word(pb.TrainerState.Name(status.state), "TRAINER_STATE_")
