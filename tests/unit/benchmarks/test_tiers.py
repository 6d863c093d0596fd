"""The figures of paper 004 that the models reach at stated speeds."""

import pytest

from benchmarks.tiers.networks import ALEXNET
from benchmarks.tiers.simulate import SPEEDS, WORKERS, gain_of, question_of, rows_of
from edge_agent.planner_names import BEST, TIER_PLANNER_NAMES
from edge_agent.planning import planned


@pytest.mark.full
@pytest.mark.parametrize("name", ["lenet", "alexnet"])
def test_the_best_gains_what_the_paper_gains_and_is_never_worse_than_a_planner(name):
    rows = list(rows_of(name))
    gain = gain_of(name, rows)
    assert gain.simulated[0] >= gain.paper[0]
    assert gain.simulated[1] >= gain.paper[1]
    for row in rows:
        assert row.seconds[BEST] <= min(row.seconds[planner] for planner in TIER_PLANNER_NAMES) * (1 + 1e-9)


@pytest.mark.slow
def test_more_cores_at_the_edge_server_help_where_the_link_beyond_is_slow_alone():
    _, (edge, near, gpu), _ = SPEEDS["alexnet"]

    def seconds(cores, far_mbit):
        question = question_of(ALEXNET, (edge, near * cores, gpu), far_mbit, frozenset(WORKERS[1:]))
        return planned(question, BEST).seconds_per_step

    assert seconds(4, 1.5) < 0.95 * seconds(1, 1.5)
    assert seconds(4, 5.0) == pytest.approx(seconds(1, 5.0), rel=0.01)
