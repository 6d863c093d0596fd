"""`edge-agent history`: shows the history of a run, as a table and as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus_entry_points import importing


def history(
    run: Annotated[Path, typer.Argument(help="Folder of the run's results (output.directory).")],
    png: Annotated[Path | None, typer.Option(help="File to draw it to; .png, .svg or .pdf.")] = None,
) -> None:
    """Show the rows of a run's `history.csv`, one an epoch and an evaluation, also while it trains; draw its losses."""
    with importing("edge-agent"):
        from rich.console import Console

        from edge_agent.commands.history_shown import draw, history_table
        from edge_agent.training.history import read_history

    rows = read_history(run)
    Console().print(history_table(rows))
    if png is not None:
        draw(rows, png)
        typer.echo(f"picture: {png}")
