"""Draws `docs/assets/session.svg`, the README's picture, from a real run of the demo: `python deploy/demo/picture.py`."""

import io
import re
import tempfile
from pathlib import Path

import demo
from rich.console import Console

from edge_agent import EdgeConfig, train
from edge_agent.commands.terminal import live_bar, summary_table
from edge_agent.training.statistics import Statistics
from shared.config import load_config

PICTURE = demo.HERE.parent.parent / "docs" / "assets" / "session.svg"
WIDTH = 100
SHOWN_AFTER_STEPS = 200


def main() -> None:
    """Train with the demo's configuration and keep what a terminal would show in the middle and at the end."""
    drawn = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    screen = Console(width=WIDTH, file=io.StringIO(), force_terminal=True)
    drawn.print("$ make demo")
    with tempfile.TemporaryDirectory() as scratch:
        address_file = Path(scratch) / "address"
        with demo.running_trainer(address_file) as (trainer, address):
            drawn.print(f"trainer: process {trainer.pid} at {address}")
            config = load_config(EdgeConfig, demo.HERE / "edge.toml", [f"trainer.address={address}"], environ={})
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
    picture = drawn.export_svg(title="Isthmus: one network on two machines")
    PICTURE.write_text(re.sub(r"\s*@font-face {.*?}", "", picture, flags=re.DOTALL))  # they are fetched from elsewhere


if __name__ == "__main__":
    main()
