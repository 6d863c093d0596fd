"""A model's blocks, as they are shown."""

import json

from rich.console import Console

from edge_agent.commands.model import describe_seams, render_slots, render_table, to_json
from edge_agent.experiment.model_report import BlockRow, SlotRow
from shared.model.division.seams import Seam

PASSING = (
    SlotRow((32, 16, 8, 8), "float32", 131072, "block 0", raw=False),
    SlotRow((32, 4), "bool", 128, "input mask", raw=True),
)
ROWS = [
    BlockRow(0, "stem", 1234, 4936, 0, False, PASSING),
    BlockRow(1, "relu", 0, 0, 0, False, (SlotRow((32, 16), "float32", 2048, "block 1", raw=False),)),
    BlockRow(2, "head", 10, 40, 2088, True, (SlotRow((32, 10), "float32", 1280, "block 2", raw=False),)),
]


def cells(table):
    console = Console(width=80, record=True)
    console.print(table)
    return [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines() if "│" in line
    ]


def test_a_person_sees_one_line_a_block():
    table = render_table(ROWS)
    assert "3 blocks" in str(table.title)
    assert cells(table) == [
        ["0", "stem (frozen)", "1,234", "4.8", "0.0"],
        ["1", "relu", "0", "0.0", "0.0"],
        ["2", "head", "10", "0.0", "2.0"],
    ]


def test_a_person_sees_every_tensor_that_crosses_its_origin_and_whether_it_is_raw():
    assert cells(render_slots(ROWS)) == [
        ["0", "32 x 16 x 8 x 8 float32", "128.0", "block 0", ""],
        ["", "32 x 4 bool", "0.1", "input mask", "raw"],
        ["1", "32 x 16 float32", "2.0", "block 1", ""],
        ["2", "32 x 10 float32", "1.2", "block 2", ""],
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
        "slots": [
            {"shape": [32, 16, 8, 8], "dtype": "float32", "bytes": 131072, "made_by": "block 0", "raw": False},
            {"shape": [32, 4], "dtype": "bool", "bytes": 128, "made_by": "input mask", "raw": True},
        ],
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


def test_a_factory_is_shown_with_the_output_that_is_set_and_with_what_learns(edge_agent):
    named = ["--factory", "tests.support.models.outputs:named", "--example", "4x64", "--json"]
    code, out, err = edge_agent("model", *named, "--set", "model.output=logits", "--set", 'model.learns=["head"]')
    assert (code, err) == (0, "")
    assert [row["trainable"] for row in json.loads(out)] == [False, False, False, True]
