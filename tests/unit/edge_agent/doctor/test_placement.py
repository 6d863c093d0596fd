"""The trainers that the doctor examines, and its judgement of a placement."""

import json

import pytest

from edge_agent.doctor.examine import check_placement
from edge_agent.doctor.finding import Status
from tests.support.running import edge_config

SEVERAL = 'trainers=[{name="near", address="near:1"}, {name="far", address="far:1"}, {name="spare", address="spare:1"}]'


def judged(*flags):
    """Return the findings, and the names of the trainers to examine."""
    findings, asked = check_placement(edge_config(*flags))
    return findings, [trainer.name for trainer in asked]


def placement_file(folder, *workers):
    """Write a placement of these workers, the last of which has all blocks, and return the flag for it."""
    path = folder / "placement.json"
    tiles = [{"worker": workers[-1], "blocks": [0, 6]}]
    path.write_text(json.dumps({"schema": "isthmus.placement/v1", "workers": workers, "tiles": tiles}))
    return f"placement.file={path}"


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ((), ["trainer"]),
        (("deployment.cut=3",), ["trainer"]),
        (("placement.edge=0:3", "placement.trainer=3:"), ["trainer"]),
        (("placement.edge=0:",), []),
        ((SEVERAL, "placement.edge=0:3", "placement.far=4:", "placement.near=3:4"), ["near", "far"]),
        ((SEVERAL, "placement.edge=0:"), []),
    ],
)
def test_a_run_asks_the_trainers_that_have_blocks(flags, asked):
    assert judged(*flags) == ([], asked)


def test_a_run_asks_all_workers_of_a_placement_file_also_those_without_blocks(tmp_path):
    assert judged(SEVERAL, placement_file(tmp_path, "edge", "spare", "near")) == ([], ["near", "spare"])
    assert judged(SEVERAL, placement_file(tmp_path, "edge")) == ([], [])


def test_a_placement_file_that_cannot_be_used_must_be_fixed_and_all_trainers_are_examined(tmp_path):
    (found,), asked = judged(SEVERAL, f"placement.file={tmp_path / 'placement.json'}")
    assert (found.check, found.status) == ("placement", Status.FIX)
    assert str(tmp_path) in found.result
    assert asked == ["near", "far", "spare"]


def test_several_trainers_without_a_placement_are_all_examined_and_a_run_needs_one():
    (found,), asked = judged(SEVERAL)
    assert (found.check, found.status) == ("placement", Status.ADVICE)
    assert "[placement]" in found.remedy
    assert asked == ["near", "far", "spare"]
