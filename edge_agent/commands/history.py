"""`edge-agent history`: shows the history of a run, as a table and as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from edge_agent.control.commands import AGENT
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides
from shared.control.choices import SOON_SECONDS
from shared.control.commands import AsJson, Control
from shared.control.formatting import show


def history(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of the run's results (output.directory); left out, the running agent is asked."),
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    control: Control = None,
    png: Annotated[Path | None, typer.Option(help="File to draw it to; .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a run, one an epoch and an evaluation, of its `history.csv` or while it trains; draw its losses."""
    with importing("edge-agent"):
        from edge_agent.commands.history_shown import draw, history_table
        from edge_agent.control.status import history_answer, rows_of
        from edge_agent.training.history import read_history

    if run is not None:
        rows = read_history(run)
        answer = history_answer(rows)
    else:
        with AGENT.calling(config, overrides, control) as service:
            answer = service.call("GetHistory", SOON_SECONDS)
        rows = rows_of(answer)
    show(answer, history_table(rows), as_json=as_json)
    if png is not None:
        draw(rows, png)
        typer.echo(f"picture: {png}", err=as_json)
