"""Tables and lines of the trainer's control commands: what a trainer, its sessions and its groups do."""

from collections.abc import Iterable

from rich.table import Column, Table

from shared.control.formatting import session_column, size, time_text, word
from shared.wire.isthmus.v1 import control_pb2 as pb


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
