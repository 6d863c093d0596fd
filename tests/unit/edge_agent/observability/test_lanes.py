"""The lanes of a time line with three workers and more: their number, names and figures."""

import pytest

from edge_agent.observability.lanes import BETWEEN_TRAINERS, lanes_of, titles_of, way
from edge_agent.observability.timeline import PARTS_TOGETHER, Span, Timeline, load
from edge_agent.observability.timeline_window import choose_window, in_turn, summary
from shared.placement import AGENT, Link, Placement, Rows, Source, Tile, two_workers

CHAIN = [Link(AGENT, "near"), Link("near", "far")]
IN_A_CHAIN = Placement(
    0,
    3,
    8,
    (AGENT, "near", "far"),
    tuple(Tile(worker, block, block + 1, Rows(0, 8)) for block, worker in enumerate((AGENT, "near", "far"))),
    (Source(AGENT, Rows(0, 8)),),
)


WHAT = {
    "edge": "forward",
    "codec": "encode",
    "uplink": "feature",
    "cloud": PARTS_TOGETHER,
    "downlink": "error gradient",
}


def chain_trace(folder):
    """Write the time line of a chain whose far end has no link to the device."""
    timeline, lanes = Timeline(), lanes_of(IN_A_CHAIN, CHAIN)
    timeline.show(lanes)
    for step in range(8):
        for place, lane in enumerate(lanes):
            if lane.phase == BETWEEN_TRAINERS:
                timeline.add_rate(lane, 100.0 + step, 1e6 * (step + 1))
            else:
                timeline.add(lane, WHAT[lane.phase], step, 100.0 + step + place / 10, 100.1 + step + place / 10)
    timeline.write(folder / "chain.json")
    return load(folder / "chain.json")


def test_a_chain_has_a_lane_for_each_worker_and_each_way_and_counts_those_whose_times_are_known(tmp_path):
    trace = chain_trace(tmp_path)
    assert list(trace.titles.values()) == [
        "edge compute",
        "encode",
        "edge → near",
        "near compute",
        "near → edge",
        "near → far",
        "far compute, by its reports",
        "far → near",
    ]
    window = choose_window(trace, 4, first_step=2)
    assert window.overlap == pytest.approx(0.5)
    assert window.rates == dict.fromkeys([way("near", "far"), way("far", "near")], 7e6), (
        "what was heard last until its end"
    )
    assert summary(window) == (
        "steps 2 to 5: 1.0 steps/s, 0.5 of 5 phases at work at once (edge compute 10%, edge → near 10%, "
        "near compute 10%, near → edge 10%, near → far 7.0 Mbit/s, far compute, by its reports 10%, "
        "far → near 7.0 Mbit/s)"
    )


def test_lanes_of_another_placement_come_below_and_take_the_names_of_all():
    first = lanes_of(two_workers(AGENT, "gpu", 2, 4, 8), [Link(AGENT, "gpu")])
    titles = titles_of(dict.fromkeys((*first, *lanes_of(IN_A_CHAIN, CHAIN))))
    assert list(titles.values())[:6] == [
        "edge compute",
        "encode",
        "edge → gpu",
        "gpu compute",
        "gpu → edge",
        "edge → near",
    ]
    assert len(set(titles.values())) == len(titles)


def test_each_way_of_a_device_with_two_trainers_carries_one_tensor_after_the_other():
    both = [Span(way(AGENT, name), "feature", 0, 0.0, 1.0) for name in ("near", "far")]
    assert in_turn(both) == both, "two links carry two at once"
