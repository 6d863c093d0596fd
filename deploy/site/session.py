"""Draws a run of the demo: the bar in the middle and at the end, and the table of the summary."""

import io
import tempfile
from pathlib import Path

from rich.console import Console

from deploy.site.terminal import to_svg
from edge_agent.commands.terminal import live_bar, summary_table
from edge_agent.demo import processes
from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, train
from shared.config import load_config

WIDTH = 100
SHOWN_AFTER_STEPS = 200
TITLE = "Isthmus: one network on two machines"


def draw(picture: Path) -> None:
    """Train with the demo's configuration and keep what a terminal would show in the middle and at the end."""
    drawn = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    screen = Console(width=WIDTH, file=io.StringIO(), force_terminal=True)
    drawn.print("$ make demo")
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.running_trainer(Path(scratch) / "address") as (trainer, address),
    ):
        drawn.print(f"trainer: process {trainer.pid} at {address}")
        flags = [f"trainer.address={address}", "control.listen=none"]
        config = load_config(EdgeConfig, processes.FILES / "edge.toml", flags, environ={})
        with live_bar(screen) as bar:

            def on_progress(progress: Statistics) -> None:
                bar.show(progress)
                if progress.steps == SHOWN_AFTER_STEPS:
                    drawn.print(bar.renderable)

            result = train(config, on_progress)
            drawn.print("...")
            drawn.print(bar.renderable)
    drawn.print(summary_table(result.summary))
    drawn.print("summary: run/demo/summary.json")
    picture.write_text(to_svg(drawn, TITLE), encoding="utf-8")
