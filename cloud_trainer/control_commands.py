"""`cloud-trainer status`, `sessions` and the others: calls of the control service of the trainer that runs on this machine."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cloud_trainer.config import TrainerConfig
from shared.config import load_config
from shared.control.calling import SOON_SECONDS, calling, show
from shared.control.commands import AsJson, Interval, Level, config_file, control, every, set_level
from shared.control.place import find_target
from shared.control.words import session_column, size, time_text, word
from shared.errors import ConfigError
from shared.options import Overrides
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
    show(answer, _status_table(answer.status), as_json=as_json)
    if not as_json:
        show(answer, _sessions_table(answer.status.sessions), as_json=False)


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
            show(answer, _status_line(answer.status), as_json=as_json)


def sessions(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """List the sessions of the running trainer: open ones, and those of which only checkpoints are kept."""
    with _trainer(config, overrides, control) as trainer:
        answer = trainer.ListSessions(pb.TrainerControlServiceListSessionsRequest(), timeout=SOON_SECONDS)
    show(answer, _sessions_table(answer.sessions), as_json=as_json)


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
    kept = "its checkpoints are kept" if resumable else "nothing is kept of it"
    show(answer, f"session {session} is closed; {kept}", as_json=as_json)


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


def _status_table(status: pb.TrainerStatus) -> Table:
    table = Table(title=f"trainer at {status.address}", show_header=False)
    state = word(pb.TrainerState.Name(status.state), "TRAINER_STATE_")
    table.add_row("state", f"[bold]{state}[/bold], {time_text(status.running)}, on {status.device}")
    table.add_row("sessions", f"{status.open_sessions} of {status.max_sessions}")
    table.add_row("done", f"{status.steps} steps, {status.samples} samples")
    table.add_row("waiting", f"{status.queues.compute} batches to compute, {status.queues.send} gradients to send")
    table.add_row("moved", f"{size(status.bytes_up)} up, {size(status.bytes_down)} down")
    table.add_row("log level", word(pb.LogLevel.Name(status.log_level), "LOG_LEVEL_"))
    return table


def _status_line(status: pb.TrainerStatus) -> str:
    state = word(pb.TrainerState.Name(status.state), "TRAINER_STATE_")
    return (
        f"{state}: {status.open_sessions} of {status.max_sessions} sessions, {status.steps} steps, "
        f"{size(status.bytes_up)} up, {size(status.bytes_down)} down"
    )


def _sessions_table(sessions: Iterable[pb.TrainerSessionStatus]) -> Table:
    table = Table(session_column(), "state", "subject", "model", "step", "cut", "K", "bits", "checkpoints")
    for session in sessions:
        today = session.deployment
        there = session.HasField("deployment")
        table.add_row(
            session.session_id,
            word(pb.TrainerSessionState.Name(session.state), "TRAINER_SESSION_STATE_"),
            session.subject or "-",
            session.model,
            str(session.step),
            *((str(today.cut), str(today.staleness_limit), str(today.bits)) if there else ("-", "-", "-")),
            ", ".join(map(str, session.checkpoint_steps)) or "-",
        )
    return table
