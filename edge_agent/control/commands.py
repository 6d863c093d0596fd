"""`edge-agent status`, `pause` and the others: calls of the control service of the agent that runs on this machine."""

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.control.trend import Trend
from edge_agent.late_config import edge_config, load_edge_config
from edge_agent.planner_names import RUN_PLANNER_NAMES
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides, one_of, whole_numbers
from shared.control.choices import SOON_SECONDS
from shared.control.commands import (
    AsJson,
    Control,
    ControlCall,
    ControlCommands,
    Interval,
    Level,
    NotControlledError,
    SeveralControlledError,
)
from shared.control.formatting import show
from shared.errors import ConfigError, UnreachableError
from shared.files.json_file import read_json

if TYPE_CHECKING:
    from shared.wire.isthmus.v1 import control_pb2 as pb

AGENT = ControlCommands("edge-agent", "agent", edge_config, "EdgeControlService")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (
        status,
        watch,
        top,
        pause,
        resume,
        drain,
        pin,
        release,
        place,
        handover,
        trainers,
        planner,
        checkpoint,
        sessions,
    ):
        app.command()(command)
    app.command("log-level")(log_level)


@AGENT.command
def status(agent: ControlCall) -> None:
    """Show what the running agent does."""
    from edge_agent.control.tables import status_table

    answer = agent.service.call("GetStatus", SOON_SECONDS)
    agent.show(answer, status_table(answer.status))


@AGENT.command
def watch(agent: ControlCall, interval: Interval = 1.0) -> None:
    """Show it again and again, a line each, until the run ends."""
    from edge_agent.control.tables import status_line

    for answer in agent.service.call("Watch", interval=timedelta(seconds=interval)):
        agent.show(answer, status_line(answer.status))


def top(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, interval: Interval = 0.5
) -> None:
    """Watch the running agent live: speed and loss with their trend, time left, phases, queues, rates, cut, bits, accuracy."""
    from rich.console import Console
    from rich.live import Live

    from edge_agent.control.tables import status_table

    trend = Trend()
    with (
        AGENT.calling(config, overrides, control) as service,
        Live(console=Console(), auto_refresh=False) as live,
    ):
        for answer in service.call("Watch", interval=timedelta(seconds=interval)):
            trend.add(answer.status)
            live.update(status_table(answer.status, trend), refresh=True)


@AGENT.command
def pause(agent: ControlCall) -> None:
    """Let training stand still at the next step boundary, and wait until it does."""
    answer = agent.service.call("Pause")
    agent.show(answer, f"training stands still before step {answer.step}")


@AGENT.command
def resume(agent: ControlCall) -> None:
    """Let training go on."""
    answer = agent.service.call("Resume", SOON_SECONDS)
    agent.show(answer, f"training goes on with step {answer.step}")


@AGENT.command
def drain(
    agent: ControlCall,
    leave: Annotated[
        bool, typer.Option("--leave", help="Leave the group of devices, which goes on without it.")
    ] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="The run counts as done there: it writes its results, and ends with code 0."),
    ] = False,
) -> None:
    """End the run as SIGTERM does: at the next step boundary and with a checkpoint."""
    answer = agent.service.call("Drain", SOON_SECONDS, leave=leave, finish=finish)
    how = ", and leaves its group" if leave else ", with its results" if finish else ""
    agent.show(answer, f"the run ends at the next step boundary{how}")


@AGENT.command
def pin(
    agent: ControlCall,
    cut: Annotated[
        str | None, typer.Option(help="Blocks on the edge; of a chain the blocks before each worker, as 3,7.")
    ] = None,
    bits: Annotated[int | None, typer.Option(help="Bits of an element of the features.", min=1, max=32)] = None,
    staleness: Annotated[int | None, typer.Option(help="K.", min=0)] = None,
    trainer: Annotated[str | None, typer.Option(help="The only trainer with blocks; `handover` says how.")] = None,
) -> None:
    """Hold the cut, the bit width, K or the trainer, until `release`."""
    cuts = () if cut is None else whole_numbers("--cut", cut)
    where = {"cuts": cuts} if len(cuts) > 1 else {"cut": cuts[0] if cuts else None}
    answer = agent.service.call("Pin", bits=bits, staleness=staleness, trainer=trainer, **where)
    agent.show(answer, _pinned(answer.pinned))


@AGENT.command
def release(
    agent: ControlCall,
    cut: Annotated[bool, typer.Option("--cut", help="The cut.")] = False,
    bits: Annotated[bool, typer.Option("--bits", help="The bit width.")] = False,
    staleness: Annotated[bool, typer.Option("--staleness", help="K.")] = False,
    trainer: Annotated[bool, typer.Option("--trainer", help="The trainer.")] = False,
) -> None:
    """Hold it no longer: what is named, or everything."""
    answer = agent.service.call("Release", SOON_SECONDS, cut=cut, bits=bits, staleness=staleness, trainer=trainer)
    agent.show(answer, _pinned(answer.pinned))


@AGENT.command
def place(
    agent: ControlCall,
    file: Annotated[
        Path, typer.Argument(help="A placement (JSON, schema isthmus.placement/v1) of workers of the session.")
    ],
) -> None:
    """Have the workers run other blocks, from the next step boundary on, and wait until they do: training waits meanwhile."""
    document = json.dumps(read_json(file, "placement", ConfigError))
    answer = agent.service.call("Place", document_json=document)
    agent.show(answer, f"placement {answer.version} is in force")


@AGENT.command
def handover(
    agent: ControlCall,
    name: Annotated[str, typer.Argument(help="A configured trainer that has no blocks.")],
    giver: Annotated[str, typer.Option("--from", help="The trainer whose blocks it gets, if several have some.")] = "",
) -> None:
    """Give a trainer all that another one has, and wait until it has it."""
    answer = agent.service.call("Handover", trainer=name, from_trainer=giver)
    agent.show(answer, f"{name} has what {answer.from_trainer} had: placement {answer.version} is in force")


@AGENT.command
def trainers(agent: ControlCall) -> None:
    """List the configured trainers: members of the session with their blocks, candidates, and who answers."""
    from edge_agent.control.tables import trainers_table

    answer = agent.service.call("ListTrainers", SOON_SECONDS)
    agent.show(answer, trainers_table(answer.trainers))


@AGENT.command
def planner(
    agent: ControlCall,
    name: Annotated[str, typer.Argument(help="What chooses what is not pinned.", **one_of(RUN_PLANNER_NAMES))],
) -> None:
    """Have the decision engine follow the link (greedy), or keep the deployment that is in force (fixed)."""
    answer = agent.service.call("SetPlanner", SOON_SECONDS, planner=name)
    agent.show(answer, f"the planner is {name}")


@AGENT.command
def checkpoint(agent: ControlCall) -> None:
    """Take a checkpoint at every worker at the next step boundary, and wait for it."""
    answer = agent.service.call("TakeCheckpoint")
    agent.show(answer, f"every worker has a checkpoint before step {answer.step}")


def sessions(
    config: ConfigFile = None, overrides: Overrides = None, control: Control = None, as_json: AsJson = False
) -> None:
    """List the sessions that were begun here and not finished; `edge-agent run --session` goes on with one.

    Where one agent runs it is asked; where none or several do, the folder of checkpoints.location is read.
    """
    try:
        with AGENT.calling(config, overrides, control) as service:
            answer = service.call("ListSessions", SOON_SECONDS)
    except (UnreachableError, NotControlledError, SeveralControlledError):
        if control is not None:
            raise
        with importing("edge-agent"):
            from edge_agent.control.status import session_statuses
            from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
            from shared.wire.isthmus.v1 import control_pb2 as pb

        loaded = load_edge_config(config, overrides)
        stored = session_statuses(stored_sessions(sessions_folder(loaded)))
        answer = pb.EdgeControlServiceListSessionsResponse(sessions=stored)
    from edge_agent.control.tables import sessions_table

    show(answer, sessions_table(answer.sessions), as_json=as_json)


@AGENT.command
def log_level(agent: ControlCall, level: Level) -> None:
    """Log more or less, until the agent ends."""
    agent.set_level(level)


def _pinned(pins: "pb.Pins") -> str:
    held = [
        f"{field.name} {','.join(map(str, value)) if field.name == 'cuts' else value}"
        for field, value in pins.ListFields()
    ]
    return f"pinned: {', '.join(held) or 'nothing'}"
