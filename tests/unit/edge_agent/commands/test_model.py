"""How a model's blocks are shown."""

import json

from rich.console import Console

from edge_agent.commands.model import render_table, to_json
from shared.model.report import BlockRow

ROWS = [
    BlockRow(0, "stem", 1234, 4936, 0, False, ((32, 16, 8, 8), (32, 4)), 131584),
    BlockRow(1, "relu", 0, 0, 0, False, ((32, 16),), 2048),
    BlockRow(2, "head", 10, 40, 2088, True, ((32, 10),), 1280),
]


def test_a_person_sees_one_line_a_block():
    console = Console(width=100, record=True)
    console.print(render_table(ROWS))
    title, *lines = console.export_text().splitlines()
    assert "3 blocks" in title
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert shown == [
        ["0", "stem (frozen)", "1,234", "4.8", "0.0", "32 x 16 x 8 x 8 + 32 x 4", "128.5"],
        ["1", "relu", "0", "0.0", "0.0", "32 x 16", "2.0"],
        ["2", "head", "10", "0.0", "2.0", "32 x 10", "1.2"],
    ]


def test_a_program_sees_the_numbers():
    first = json.loads(to_json(ROWS))[0]
    assert first == {
        "block": 0,
        "name": "stem",
        "parameters": 1234,
        "parameter_bytes": 4936,
        "optimizer_bytes": 0,
        "trainable": False,
        "feature_shapes": [[32, 16, 8, 8], [32, 4]],
        "feature_bytes": 131584,
    }
