"""Answers of the trainer's control service for a person: a table, or a line."""

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
    table.add_row("waiting", f"{status.queues.compute} batches to compute, {status.queues.send} gradients to send")
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
