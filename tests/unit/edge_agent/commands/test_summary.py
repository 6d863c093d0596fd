"""The summary of a run: it names the final place of each block, also of a block on several workers."""

import io

import pytest
from rich.console import Console

from edge_agent.commands.terminal import summary_table
from edge_agent.experiment.experiment import Experiment
from edge_agent.training.result import Summary
from edge_agent.training.statistics import Statistics
from shared.placement import parse_placement
from tests.support.commands import MLP
from tests.support.running import edge_config

BATCH = 32


@pytest.fixture(scope="module")
def chain():
    return Experiment(edge_config(*MLP)).chain


def summary(chain, tiles, owners):
    document = {
        "schema": "isthmus.placement/v1",
        "workers": ["edge", "near", "far"],
        "tiles": [{"worker": worker, "blocks": blocks, "samples": samples} for worker, blocks, samples in tiles],
        "owners": owners,
    }
    placement = parse_placement(document, "a test", len(chain.blocks), BATCH)
    return Summary.of(Statistics(10, steps=10, samples=10 * BATCH, earlier_seconds=2.0), chain, placement)


def drawn(of):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(summary_table(of))
    lines = [line.strip("│ ") for line in console.export_text().splitlines()]
    return {line.split("│")[0].strip(): line.split("│")[1].strip() for line in lines if line.startswith("on ")}


def test_a_worker_that_holds_blocks_of_another_owner_is_not_said_to_have_none(chain):
    last = len(chain.blocks)
    tiles = [("edge", [0, 1], [0, 8]), ("near", [0, 1], [8, BATCH]), ("far", [1, last], [0, BATCH])]
    of = summary(chain, tiles, {"0": "near"})
    first = of.blocks[0]
    assert (first.worker, first.held_by) == ("near", ["edge", "near"])
    shown = drawn(of)
    assert shown["on edge"] == f"{first.name} ({first.parameters:,} parameters, owned by near)"
    assert shown["on near"] == f"{first.name} ({first.parameters:,} parameters)"
    assert "owned" not in shown["on far"]


def test_an_owner_that_runs_nothing_is_said_to_have_its_blocks(chain):
    last = len(chain.blocks)
    tiles = [("edge", [0, last], [0, 8]), ("near", [0, last], [8, BATCH])]
    of = summary(chain, tiles, {str(index): "far" for index in range(last)})
    assert {(block.worker, *block.held_by) for block in of.blocks} == {("far", "edge", "near", "far")}
    assert set(drawn(of)) == {"on edge", "on near", "on far"}


def test_a_device_without_blocks_has_none(chain):
    of = summary(chain, [("near", [0, len(chain.blocks)], [0, BATCH])], {})
    assert drawn(of)["on edge"] == "no block"


def test_the_rate_is_that_of_the_steps_and_the_seconds(chain):
    of = summary(chain, [("edge", [0, len(chain.blocks)], [0, BATCH])], {})
    assert (of.steps, of.seconds, of.samples_per_second) == (10, 2.0, 160.0)
