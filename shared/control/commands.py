"""What the commands that call a control service share, whichever of the two it is."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from shared.control.calling import SOON_SECONDS, show
from shared.control.levels import LevelName
from shared.control.watching import LEAST_SECONDS, MOST_SECONDS
from shared.wire.isthmus.v1.control_pb2 import LogLevel

AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON, as grpcurl prints it.")]
Interval = Annotated[float, typer.Option(help="Seconds between two looks.", min=LEAST_SECONDS, max=MOST_SECONDS)]
Level = Annotated[LevelName, typer.Argument(help="The least severe level that is written.")]


def config_file(who: str) -> Any:
    """The option of the configuration of `who`, "agent" or "trainer", that is to be found by it."""
    return typer.Option("--config", "-c", help=f"Configuration file (TOML) of the {who}.")


def control(who: str) -> Any:
    """The option of the place itself."""
    return typer.Option("--control", help=f"Where the {who} is controlled: unix:/path or host:port (control.listen).")


def every(seconds: float) -> Duration:
    """An interval as the contract has it."""
    interval = Duration()
    interval.FromNanoseconds(int(seconds * 1e9))
    return interval


def set_level(service: Any, request: Callable[..., Message], level: LevelName, *, as_json: bool) -> None:
    """`log-level`: say it to a service, by its own kind of request, and show the answer."""
    answer = service.SetLogLevel(request(level=LogLevel.Value(f"LOG_LEVEL_{level.name}")), timeout=SOON_SECONDS)
    show(answer, f"the log level is {level.value}", as_json=as_json)
