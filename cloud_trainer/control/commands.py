"""`cloud-trainer status`, `sessions` and the others: calls of the control service of the trainer that runs on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.tables import sessions_table, status_line, status_table
from shared.commands.options import Overrides
from shared.config import load_config
from shared.control.address import find_target
from shared.control.calling import SOON_SECONDS, calling, show
from shared.control.commands import AsJson, Interval, Level, config_file, control, every, set_level
from shared.errors import ConfigError
from shared.wire.isthmus.v1 import control_pb2 as pb
from shared.wire.isthmus.v1.control_pb2_grpc import TrainerControlServiceStub

ConfigFile = Annotated[Path | None, config_file("trainer")]
Control = Annotated[str | None, control("trainer")]


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (status, watch, sessions, close, drain):
        app.command()(command)
    app.command("log-level")(log_level)


def status(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Show what the running trainer does, and its open sessions."""
    with _trainer(config, overrides, control) as trainer:
        answer = trainer.GetStatus(pb.TrainerControlServiceGetStatusRequest(), timeout=SOON_SECONDS)
    show(answer, status_table(answer.status), as_json=as_json)
    if not as_json:
        show(answer, sessions_table(answer.status.sessions), as_json=False)


def watch(
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    interval: Interval = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show it again and again, a line each, until the trainer stops."""
    with _trainer(config, overrides, control) as trainer:
        for answer in trainer.Watch(pb.TrainerControlServiceWatchRequest(interval=every(interval))):
            show(answer, status_line(answer.status), as_json=as_json)


def sessions(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """List the sessions of the running trainer: open ones, and those that only have checkpoints left."""
    with _trainer(config, overrides, control) as trainer:
        answer = trainer.ListSessions(pb.TrainerControlServiceListSessionsRequest(), timeout=SOON_SECONDS)
    show(answer, sessions_table(answer.sessions), as_json=as_json)


def close(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    resumable: Annotated[bool, typer.Option("--resumable", help="Keep its record and checkpoints.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a session; unless it is to be resumable, it is gone for good."""
    with _trainer(config, overrides, control) as trainer:
        request = pb.TrainerControlServiceCloseSessionRequest(session_id=session, resumable=resumable)
        answer = trainer.CloseSession(request, timeout=SOON_SECONDS)
    fate = "its checkpoints are kept" if resumable else "nothing is kept of it"
    show(answer, f"session {session} is closed; {fate}", as_json=as_json)


def drain(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Stop the trainer as SIGTERM does: edges take a checkpoint, and wait for it to come back."""
    with _trainer(config, overrides, control) as trainer:
        answer = trainer.Drain(pb.TrainerControlServiceDrainRequest(), timeout=SOON_SECONDS)
    show(answer, "the trainer stops when its edges have taken a checkpoint", as_json=as_json)


def log_level(
    level: Level,
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    as_json: AsJson = False,
) -> None:
    """Log more or less, until the trainer ends."""
    with _trainer(config, overrides, control) as trainer:
        set_level(trainer, pb.TrainerControlServiceSetLogLevelRequest, level, as_json=as_json)


@contextmanager
def _trainer(config: Path | None, overrides: list[str] | None, control: str | None) -> Iterator[Any]:
    listen = control or load_config(TrainerConfig, config, overrides or []).control.listen
    if listen == "none":
        raise ConfigError("control.listen is none, so a trainer cannot be controlled; give --control, or set another")
    with calling(find_target(listen, "cloud-trainer"), "trainer", TrainerControlServiceStub) as stub:
        yield stub
