"""The history of a run for a person: a table, and a picture of its losses. The latter needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from edge_agent.observability.plots import NO_MATPLOTLIB, write_picture
from edge_agent.training.history import HistoryRow, metrics_of
from shared.control.formatting import size
from shared.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WIDEST = 10_000


def history_table(rows: Sequence[HistoryRow]) -> str:
    """Show a line a row. What was not evaluated, or has no classes, is a dash.

    The table is as wide as its numbers: with metrics a terminal may wrap its lines, but none is cut.
    """
    metrics = metrics_of(rows)
    heads = ("step", "epoch", "train", "test", "accuracy", *metrics, "rate", "cut", "K", "bits", "up", "down", "/s")
    table = Table(*(Column(head, justify="right", no_wrap=True) for head in heads), box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(
            str(row.step),
            str(row.epoch),
            _shown(row.train_loss, ".4g"),
            _shown(row.test_loss, ".4g"),
            _shown(row.accuracy, ".1%"),
            *(_shown(row.metrics.get(name), ".4g") for name in metrics),
            _shown(row.learning_rate, ".3g"),
            str(row.edge_blocks),
            str(row.staleness),
            str(row.bits),
            size(row.bytes_up),
            size(row.bytes_down),
            f"{row.samples_per_second:.0f}",
        )
    console = Console(width=_WIDEST)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)


def draw(rows: Sequence[HistoryRow], path: Path) -> None:
    """Draw losses and accuracy over the steps; the ending of `path` says which kind, png, svg or pdf.

    Raises ConfigError where matplotlib is not installed or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(f"drawing a history {NO_MATPLOTLIB}") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    losses = figure.add_subplot()
    _draw_line(losses, "train loss", [(row.step, row.train_loss) for row in rows], "#4e79a7")
    _draw_line(losses, "test loss", [(row.step, row.test_loss) for row in rows], "#f28e2b")
    losses.set_xlabel("step")
    losses.set_ylabel("loss")
    losses.grid(alpha=0.3)
    if any(row.accuracy is not None for row in rows):
        accuracies = losses.twinx()
        _draw_line(accuracies, "accuracy", [(row.step, row.accuracy) for row in rows], "#59a14f")
        accuracies.set_ylabel("accuracy")
    figure.legend(loc="outside lower left", ncols=3, frameon=False)
    write_picture(figure, path)


def _draw_line(axes: "Axes", label: str, points: Sequence[tuple[int, float | None]], colour: str) -> None:
    known = [(step, value) for step, value in points if value is not None]
    if known:
        steps, values = zip(*known, strict=True)
        axes.plot(steps, values, marker="o", markersize=3, label=label, color=colour)
