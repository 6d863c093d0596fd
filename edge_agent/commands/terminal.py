"""A run on the terminal: a live bar while it trains, log lines above it, a table when it is done."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from edge_agent.profiling.events import PieceDone
from edge_agent.training.result import BlockPlace, Summary
from edge_agent.training.statistics import Statistics
from shared.control.formatting import size
from shared.events import Events
from shared.placement import AGENT


class LiveBar:
    """Steps, loss, samples a second and bytes both ways of a run."""

    def __init__(self, console: Console) -> None:
        # Eighty columns hold the figures; the bar takes the rest.
        columns = (
            BarColumn(bar_width=None, table_column=Column(max_width=20)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]:.0f} samples/s"),
            TextColumn("↑{task.fields[up]} ↓{task.fields[down]}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        # Without a terminal, a bar would only stand between the lines of a log.
        self.bar = Bar(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal)
        self._task = self.bar.add_task(
            "training", start=False, total=None, loss="-", rate=0.0, up="0 B", down="0 B", accuracy=""
        )

    def show(self, progress: Statistics) -> None:
        """Called after every step, and when something else has changed; drawn from the first step on."""
        if progress.steps == 0:
            return
        self.bar.start_task(self._task)
        self.bar.update(
            self._task,
            total=progress.total_steps,
            completed=progress.steps,
            loss=_shown(progress.loss, ".3f"),
            rate=progress.samples_per_second,
            up=size(progress.bytes_up),
            down=size(progress.bytes_down),
            accuracy="" if progress.accuracy is None else f"accuracy {progress.accuracy:.1%}",
        )
        self.bar.start()

    @property
    def renderable(self) -> RenderableType:
        """The bar as it stands now."""
        return self.bar.get_renderable()


class LogLines(io.TextIOBase):
    """A stream for logs that share a terminal with a bar: each line is written above it. For `configure_logs`."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self._console.is_terminal

    def write(self, text: str) -> int:
        """Write whole lines."""
        if self._console.is_terminal:
            self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)
        else:
            self._console.file.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it on its way."""
        self._console.file.flush()


@contextmanager
def live_bar(console: Console) -> Iterator[LiveBar]:
    """A bar on the terminal, from the first step until the block ends."""
    live = LiveBar(console)
    try:
        yield live
    finally:
        live.bar.stop()


@contextmanager
def counting_bars(console: Console, works: Mapping[type[PieceDone], str]) -> Iterator[Events]:
    """A bar for each work that comes in pieces, by the event of a piece; yields the events that move them."""
    events = Events()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:

        def show(kind: type[PieceDone], work: str) -> None:
            task = bar.add_task(work, total=None)
            events.subscribe(kind, lambda event: bar.update(task, completed=event.done, total=event.total))

        for kind, work in works.items():
            show(kind, work)
        yield events


def summary_table(summary: Summary) -> Table:
    """The figures of a finished run, and where its blocks ran."""
    table = Table(title=f"session {summary.session}", show_header=False)
    if summary.accuracy is not None:
        table.add_row("accuracy", f"{summary.accuracy:.2%}")
    if summary.test_loss is not None:
        table.add_row("test loss", f"{summary.test_loss:.4f}")
    for name, value in summary.metrics.items():
        table.add_row(escape(name), f"{value:.4g}")
    table.add_row("train loss", _shown(summary.train_loss, ".4f"))
    table.add_row(
        "time", f"{summary.seconds:.1f} s for {summary.steps} steps, {summary.samples_per_second:.0f} samples/s"
    )
    table.add_row("bytes", f"{size(summary.bytes_up)} up, {size(summary.bytes_down)} down")
    for worker in dict.fromkeys([AGENT, *(name for block in summary.blocks for name in block.held_by)]):
        held = [block for block in summary.blocks if worker in block.held_by]
        owners = dict.fromkeys(block.worker for block in held)
        shown = (_blocks_of(owner, worker, [block for block in held if block.worker == owner]) for owner in owners)
        table.add_row(f"on {worker}", "\n".join(shown) or "no block")
    return table


def _blocks_of(owner: str, worker: str, blocks: list[BlockPlace]) -> str:
    """Blocks that a worker has, all of one owner."""
    whose = "" if owner == worker else f", owned by {owner}"
    return (
        f"{', '.join(block.name for block in blocks)} ({sum(block.parameters for block in blocks):,} parameters{whose})"
    )


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)
