"""`edge-agent timeline`: reads a trace, says how well its workers and links overlapped, and draws it."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus_entry_points import importing


def timeline(
    trace: Annotated[Path, typer.Argument(help="File that `edge-agent run --trace FILE` has written.")],
    png: Annotated[Path | None, typer.Option(help="File to draw it to; .png, .svg or .pdf.")] = None,
    first_step: Annotated[
        int | None,
        typer.Option("--from", help="First step shown. Left out, a stretch whose steps take a typical time."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="How many steps are shown.")] = 12,
) -> None:
    """Say how far the workers and links of a run overlapped, and draw some of its steps."""
    with importing("edge-agent"):
        from edge_agent.commands.timeline_plot import draw
        from edge_agent.observability.timeline import load
        from edge_agent.observability.timeline_window import choose_window, summary

    window = choose_window(load(trace), steps, first_step)
    typer.echo(summary(window))
    if png is not None:
        draw(window, png)
        typer.echo(f"picture: {png}")
