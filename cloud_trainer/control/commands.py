"""`cloud-trainer status`, `sessions` and the others: calls of the control service of the trainer that runs on this machine."""

from typing import Annotated

import typer
from rich.console import Group

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.tables import sessions_table, status_line, status_table
from shared.control.choices import SOON_SECONDS
from shared.control.commands import ControlCall, ControlCommands, Interval, Level, every
from shared.wire.isthmus.v1 import control_pb2 as pb

_TRAINER = ControlCommands("cloud-trainer", "trainer", TrainerConfig, "TrainerControlServiceStub")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (status, watch, sessions, close, drain):
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
