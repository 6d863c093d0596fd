"""Figures and names of the control services as a person reads them."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from rich.console import RenderableType
    from rich.table import Column


def session_column() -> "Column":
    """A column of session ids: users copy them from there, so they are shown whole at every width."""
    from rich.table import Column

    return Column("session", min_width=32, no_wrap=True)


def size(count: float) -> str:
    """Bytes for a person: decimal units, as rates are."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def word(enum_name: str, prefix: str) -> str:
    """A name of the contract's as a word: RUN_STATE_PAUSED is "paused"."""
    return enum_name.removeprefix(prefix).replace("_", " ").lower()


def time_text(duration: "Duration") -> str:
    """Format a duration."""
    seconds = duration.ToNanoseconds() / 1e9
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show(answer: "Message", shown: "RenderableType", *, as_json: bool) -> None:
    """Print an answer for a person, or as JSON as grpcurl prints it."""
    if as_json:
        from google.protobuf import json_format

        typer.echo(json_format.MessageToJson(answer))
    elif isinstance(shown, str):
        typer.echo(shown)
    else:
        from rich.console import Console

        Console().print(shown)
