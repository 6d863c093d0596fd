"""`edge-agent status`, `pause` and the others: calls of the control service of the agent that runs on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from edge_agent.adaptation.decisions import PLANNER_NAMES
from edge_agent.config import EdgeConfig
from edge_agent.control.tables import sessions_table, status_line, status_table
from edge_agent.control.trend import Trend
from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
from shared.commands.options import Overrides, one_of
from shared.config import load_config
from shared.control.address import find_target
from shared.control.calling import SOON_SECONDS, calling, show
from shared.control.commands import AsJson, Interval, Level, config_file, control, every, set_level
from shared.errors import ConfigError, UnreachableError
from shared.wire.isthmus.v1 import control_pb2 as pb
from shared.wire.isthmus.v1.control_pb2_grpc import EdgeControlServiceStub

ConfigFile = Annotated[Path | None, config_file("agent")]
Control = Annotated[str | None, control("agent")]


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (status, watch, top, pause, resume, drain, pin, release, planner, checkpoint, sessions):
        app.command()(command)
    app.command("log-level")(log_level)


def status(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Show what the running agent does."""
    with _agent(config, overrides, control) as agent:
        answer = agent.GetStatus(pb.EdgeControlServiceGetStatusRequest(), timeout=SOON_SECONDS)
    show(answer, status_table(answer.status), as_json=as_json)


def watch(
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    interval: Interval = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show it again and again, a line each, until the run ends."""
    with _agent(config, overrides, control) as agent:
        for answer in agent.Watch(pb.EdgeControlServiceWatchRequest(interval=every(interval))):
            show(answer, status_line(answer.status), as_json=as_json)


def top(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, interval: Interval = 0.5
) -> None:
    """Watch the running agent live: speed and loss with their trend, time left, phases, queues, rates, cut, bits, accuracy."""
    trend = Trend()
    with _agent(config, overrides, control) as agent, Live(console=Console(), auto_refresh=False) as live:
        for answer in agent.Watch(pb.EdgeControlServiceWatchRequest(interval=every(interval))):
            trend.add(answer.status)
            live.update(status_table(answer.status, trend), refresh=True)


def pause(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Let training stand still at the next step boundary, and wait until it does."""
    with _agent(config, overrides, control) as agent:
        answer = agent.Pause(pb.PauseRequest())
    show(answer, f"training stands still before step {answer.step}", as_json=as_json)


def resume(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Let training go on."""
    with _agent(config, overrides, control) as agent:
        answer = agent.Resume(pb.ResumeRequest(), timeout=SOON_SECONDS)
    show(answer, f"training goes on with step {answer.step}", as_json=as_json)


def drain(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """End the run as SIGTERM does: at the next step boundary and with a checkpoint."""
    with _agent(config, overrides, control) as agent:
        answer = agent.Drain(pb.EdgeControlServiceDrainRequest(), timeout=SOON_SECONDS)
    show(answer, "the run ends at the next step boundary", as_json=as_json)


def pin(
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    cut: Annotated[int | None, typer.Option(help="Blocks on the edge.", min=1)] = None,
    bits: Annotated[int | None, typer.Option(help="Bits of an element of the features.", min=1, max=32)] = None,
    staleness: Annotated[int | None, typer.Option(help="K.", min=0)] = None,
    as_json: AsJson = False,
) -> None:
    """Hold the cut, the bit width or K, until `release`."""
    with _agent(config, overrides, control) as agent:
        answer = agent.Pin(pb.PinRequest(cut=cut, bits=bits, staleness=staleness))
    show(answer, _pinned(answer.pinned), as_json=as_json)


def release(
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    cut: Annotated[bool, typer.Option("--cut", help="The cut.")] = False,
    bits: Annotated[bool, typer.Option("--bits", help="The bit width.")] = False,
    staleness: Annotated[bool, typer.Option("--staleness", help="K.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hold it no longer: what is named, or everything."""
    with _agent(config, overrides, control) as agent:
        request = pb.ReleaseRequest(cut=cut, bits=bits, staleness=staleness)
        answer = agent.Release(request, timeout=SOON_SECONDS)
    show(answer, _pinned(answer.pinned), as_json=as_json)


def planner(
    name: Annotated[str, typer.Argument(help="Which planner chooses what is not pinned.", **one_of(PLANNER_NAMES))],
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    as_json: AsJson = False,
) -> None:
    """Set how the decision engine chooses: greedy follows the link, any other chooses once and holds."""
    with _agent(config, overrides, control) as agent:
        request = pb.SetPlannerRequest(planner=name)
        answer = agent.SetPlanner(request, timeout=SOON_SECONDS)
    show(answer, f"the planner is {name}", as_json=as_json)


def checkpoint(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """Take a checkpoint on both sides at the next step boundary, and wait for it."""
    with _agent(config, overrides, control) as agent:
        answer = agent.TakeCheckpoint(pb.TakeCheckpointRequest())
    show(answer, f"both sides have a checkpoint before step {answer.step}", as_json=as_json)


def sessions(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """List the sessions that were begun here and not finished; `edge-agent run --session` goes on with one.

    Where an agent runs it is asked; where none does, the folder of checkpoints.location is read.
    """
    from edge_agent.control.status import session_statuses

    try:
        with _agent(config, overrides, control) as agent:
            answer = agent.ListSessions(pb.EdgeControlServiceListSessionsRequest(), timeout=SOON_SECONDS)
    except (UnreachableError, _NotControlled):
        if control is not None:
            raise
        loaded = load_config(EdgeConfig, config, overrides or [])
        stored = session_statuses(stored_sessions(sessions_folder(loaded)))
        answer = pb.EdgeControlServiceListSessionsResponse(sessions=stored)
    show(answer, sessions_table(answer.sessions), as_json=as_json)


def log_level(
    level: Level,
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    as_json: AsJson = False,
) -> None:
    """Log more or less, until the agent ends."""
    with _agent(config, overrides, control) as agent:
        set_level(agent, pb.EdgeControlServiceSetLogLevelRequest, level, as_json=as_json)


class _NotControlled(ConfigError):
    """The configuration says that the agent is controlled from nowhere."""


@contextmanager
def _agent(config: Path | None, overrides: list[str] | None, control: str | None) -> Iterator[Any]:
    listen = control or load_config(EdgeConfig, config, overrides or []).control.listen
    if listen == "none":
        raise _NotControlled("control.listen is none, so an agent cannot be controlled; give --control, or set another")
    with calling(find_target(listen, "edge-agent"), "agent", EdgeControlServiceStub) as stub:
        yield stub


def _pinned(pins: pb.Pins) -> str:
    held = [f"{field.name} {value}" for field, value in pins.ListFields()]
    return f"pinned: {', '.join(held) or 'nothing'}"
