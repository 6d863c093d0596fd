"""The live bar, on the widest terminals."""

import io

import pytest
from rich.console import Console

from edge_agent.commands.terminal import live_bar
from edge_agent.training.statistics import Statistics

FIGURES = ["12000/88000", "loss 0.073", "samples/s", "↑69.3 MB ↓69.2 MB", "accuracy 98.1%"]


@pytest.mark.parametrize("width", [80, 200])
def test_all_figures_are_whole(width):
    terminal = Console(width=width, file=io.StringIO(), force_terminal=True)
    progress = Statistics(
        total_steps=88_000, steps=12_000, loss=0.0731, bytes_up=69_300_000, bytes_down=69_200_000, accuracy=0.981
    )
    with live_bar(terminal) as live:
        live.show(progress)
        drawn = Console(width=width, file=io.StringIO(), record=True)
        drawn.print(live.renderable)
    (line,) = drawn.export_text().splitlines()
    assert [figure for figure in FIGURES if figure not in line] == []
