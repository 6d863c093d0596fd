"""The time line of a run under any placement: a lane for each worker and each way of a link, and tensors by what they are."""

from collections import Counter

import pytest

from edge_agent.observability.timeline import load
from edge_agent.observability.timeline_window import choose_window, summary
from isthmus import run_training
from tests.integration.placements.test_figures import STEPS, K, config_of
from tests.support.experiments import flags
from tests.support.placement_kinds import running_trainers
from tests.support.running import Listening, edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
TWO_WORKERS = ["P1 edge compute", "encode", "P2 uplink", "P3 cloud compute", "P4 downlink"]


async def traced(kind, folder, *listening):
    """Return the time line that a run under a placement has written."""
    async with running_trainers() as servers:
        settings = [f"output.trace={folder / 'trace.json'}", f"deployment.staleness={K}"]
        await run_training(config_of(kind, servers, folder, "mlp", *settings), *listening)
    return load(folder / "trace.json")


def drawn(trace):
    """Count the spans of each kind of work in each lane."""
    titles = trace.titles
    return Counter((titles[span.lane], span.what) for span in trace.spans)


def each_step(*expected):
    return dict.fromkeys(expected, STEPS)


async def test_two_workers_have_the_lanes_of_the_four_phases(tmp_path):
    trace = await traced("two workers", tmp_path)
    assert list(trace.titles.values()) == TWO_WORKERS
    encoded = {("encode", "encode"): 2 * STEPS}
    assert drawn(trace) == encoded | each_step(
        ("P1 edge compute", "forward"),
        ("P1 edge compute", "backward, update"),
        ("P2 uplink", "feature"),
        ("P2 uplink", "label"),
        ("P3 cloud compute", "forward, backward"),
        ("P4 downlink", "error gradient"),
    )


async def test_a_chain_has_every_worker_and_every_link(tmp_path):
    trace = await traced("chain of three", tmp_path)
    assert list(trace.titles.values()) == [
        "edge compute",
        "encode",
        "edge → near",
        "near compute",
        "near → edge",
        "edge → far",
        "near → far",
        "far compute",
        "far → edge",
        "far → near",
    ]
    found = drawn(trace)
    assert found.pop(("encode", "encode")) == 2 * STEPS
    assert found == each_step(
        ("edge compute", "forward"),
        ("edge compute", "backward, update"),
        ("edge → near", "feature"),
        ("near compute", "compute"),
        ("near → edge", "error gradient"),
        ("edge → far", "label"),
        ("far compute", "forward, backward"),
    )
    assert {trace.titles[news.lane] for news in trace.rates} <= {"near → far", "far → near"}


async def test_a_trainer_without_a_link_to_the_device_is_drawn_by_its_reports(tmp_path):
    trace = await traced("there and back", tmp_path)
    titles = trace.titles
    assert list(titles.values())[5:] == ["near → far", "far compute, by its reports", "far → near"]
    assert drawn(trace)["far compute, by its reports", "compute"] == STEPS
    far = [span for span in trace.spans if span.lane.of == "far"]
    assert [span.step for span in far] == list(range(STEPS))
    assert all(span.end > span.start for span in far)
    forward = [span for span in trace.spans if (titles[span.lane], span.what) == ("edge compute", "forward")]
    sent = {span.step: span.end for span in forward}
    assert all(sent[span.step] < span.start for span in far), "drawn late rather than early"


async def test_features_that_come_down_are_no_gradients(tmp_path):
    heard = []
    trace = await traced("labels stay", tmp_path, Listening(progressed=heard.append))
    assert list(trace.titles.values()) == TWO_WORKERS
    found = drawn(trace)
    for lane in ("P2 uplink", "P4 downlink"):
        crossed = {what: count for (title, what), count in found.items() if title == lane}
        assert crossed == each_step("feature", "error gradient")
    assert found["P3 cloud compute", "compute"] == STEPS
    assert heard[-1].downlink.count == STEPS, "T4 is that of the error gradients"


async def test_shared_blocks_send_parts_and_weights(tmp_path):
    found = drawn(await traced("samples divided", tmp_path))
    tensors = 2 * 2  # a weight and a bias of each of two blocks
    assert found["edge → near", "part"] == found["near → edge", "weights"] == tensors * STEPS


async def test_the_device_alone_has_one_lane(tmp_path):
    settings = ["training.max_steps=3", "trainers=[]", f"output.trace={tmp_path / 'trace.json'}"]
    await run_training(edge_config(*flags("mlp", "sgd"), *settings))
    trace = load(tmp_path / "trace.json")
    assert list(trace.titles.values()) == ["P1 edge compute"]
    assert [span.step for span in trace.spans] == [0, 1, 2]
    assert "of 1 phase at work at once (P1 edge compute" in summary(choose_window(trace, 3))
