"""`cloud-trainer status`, `sessions` and the others: calls of the control service of the trainer that runs on this machine."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus_entry_points import importing
from shared.control.choices import SOON_SECONDS
from shared.control.commands import ControlCall, ControlCommands, Interval, Level

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
    from rich.console import Group

    from cloud_trainer.control.tables import sessions_table, status_table

    answer = trainer.service.call("GetStatus", SOON_SECONDS)
    trainer.show(answer, Group(status_table(answer.status), sessions_table(answer.status.sessions)))


@_TRAINER.command
def watch(trainer: ControlCall, interval: Interval = 1.0) -> None:
    """Show it again and again, a line each, until the trainer stops."""
    from cloud_trainer.control.tables import status_line

    for answer in trainer.service.call("Watch", interval=timedelta(seconds=interval)):
        trainer.show(answer, status_line(answer.status))


@_TRAINER.command
def sessions(trainer: ControlCall) -> None:
    """List the sessions of the running trainer: open ones, and those that only have checkpoints left."""
    from cloud_trainer.control.tables import sessions_table

    answer = trainer.service.call("ListSessions", SOON_SECONDS)
    trainer.show(answer, sessions_table(answer.sessions))


@_TRAINER.command
def groups(trainer: ControlCall) -> None:
    """List the groups of devices that train here, with their members, and for whom the present step waits."""
    from rich.console import Group

    from cloud_trainer.control.tables import group_table

    answer = trainer.service.call("ListGroups", SOON_SECONDS)
    tables = [group_table(group) for group in answer.groups]
    trainer.show(answer, Group(*tables) if tables else "no groups are configured ([[groups]])")


@_TRAINER.command
def free(
    trainer: ControlCall,
    group: Annotated[str, typer.Argument(help="The group's name.")],
    rank: Annotated[int, typer.Argument(help="The rank.", min=0)],
) -> None:
    """End the session of a rank of a group, and have the rank be anybody's who may be a member."""
    answer = trainer.service.call("FreeRank", SOON_SECONDS, group=group, rank=rank)
    before = "is free" if answer.had_owner else "was nobody's"
    trainer.show(answer, f"rank {rank} of group {group} {before}")


@_TRAINER.command
def close(
    trainer: ControlCall,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    resumable: Annotated[bool, typer.Option("--resumable", help="Keep its record and checkpoints.")] = False,
) -> None:
    """End a session; unless it is to be resumable, it is gone for good."""
    answer = trainer.service.call("CloseSession", SOON_SECONDS, session_id=session, resumable=resumable)
    fate = "its checkpoints are kept" if resumable else "nothing is kept of it"
    trainer.show(answer, f"session {session} is closed; {fate}")


@_TRAINER.command
def drain(trainer: ControlCall) -> None:
    """Stop the trainer as SIGTERM does: edges take a checkpoint, and wait for it to come back."""
    answer = trainer.service.call("Drain", SOON_SECONDS)
    trainer.show(answer, "the trainer stops when its edges have taken a checkpoint")


@_TRAINER.command
def log_level(trainer: ControlCall, level: Level) -> None:
    """Log more or less, until the trainer ends."""
    trainer.set_level(level)
