"""A model's blocks, as they are shown."""

import json

from rich.console import Console

from edge_agent.commands.model import describe_seams, render_table, to_json
from shared.model.division.seams import Seam
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
    first = json.loads(to_json(ROWS, None))[0]
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


def test_obstacles_to_a_cut_are_shown_to_people_and_programs():
    seams = [Seam("stem.a", "stem.b", "in front of 'stem.b' there pass two tensors")]
    shown = json.loads(to_json(ROWS, seams))
    assert shown["blocks"] == json.loads(to_json(ROWS, None))
    assert shown["not_cut"] == [{"before": "stem.a", "after": "stem.b", "reason": seams[0].reason}]
    first, second, advice = describe_seams(seams).splitlines()
    assert first == "'stem.a' and 'stem.b' are in one block:"
    assert second.strip() == seams[0].reason
    assert "blocks()" in advice
    assert describe_seams([]) == "There is a cut in front of each layer with weights but the first."


def test_a_model_is_explained_by_its_command(edge_agent):
    code, out, err = edge_agent(
        "model", "--factory", "tests.support.models.masked:encoder", "--example", "4x7:int64<10", "--explain"
    )
    assert (code, err) == (0, "")
    assert "'layers.0.mix' and 'layers.0.out' are in one block:" in out
    assert "tests/support/models/masked.py:" in out
