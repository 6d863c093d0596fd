"""`edge-agent forget`: removes a session's files from this device, if it will not be resumed."""

from typing import Annotated

import typer

from edge_agent.late_config import load_edge_config
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides


def forget(
    session: Annotated[str, typer.Argument(help="Its id, as `edge-agent sessions` shows it.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Remove this device's half of a session; `run --resume` then begins from the start. The trainer is not told."""
    with importing("edge-agent"):
        from edge_agent.sessions.stored_session import forget_session, sessions_folder

    forget_session(sessions_folder(load_edge_config(config, overrides)), session)
    typer.echo(f"session {session} is forgotten here")
