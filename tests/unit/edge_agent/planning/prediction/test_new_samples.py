"""New times of a worker: the accuracy of those derived from a few, and how sure they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.prediction import ChangedDevice
from tests.support.planning.chain_runs import uniform_chain

BLOCKS = 10
BEFORE = uniform_chain(blocks=BLOCKS).workers[0].replayed


def table_of(blocks, constant=0.002):
    """Tabulate the seconds of every run of these blocks, on a device that adds a constant to each run."""
    sums = np.concatenate([[0.0], np.cumsum(blocks)])
    table = constant + sums[None, :] - sums[:, None]
    table[np.tril_indices(len(sums))] = np.nan
    return table


def measured(before, runs, truth):
    """Return the times of a worker that takes `truth` now, by those of these ranges, and their standard deviations."""
    ratios, spreads = ChangedDevice(before).ratios({run: float(truth[run]) for run in runs})
    return ratios * before, spreads * before


def off(table, truth):
    """Compute the relative error of each time."""
    known = np.isfinite(truth)
    return np.abs(table[known] / truth[known] - 1.0)


SPREAD_OUT = [(0, 10), (0, 3), (7, 10), (4, 6), (9, 10), (0, 1), (2, 5), (5, 8)]


@pytest.mark.parametrize("today", [(0, 3), (4, 6), (9, 10), (0, 10)])
def test_eight_samples_tell_all_times_of_a_device_that_no_factor_describes(today):
    truth = table_of(np.linspace(0.02, 0.2, BLOCKS))
    table, _ = measured(BEFORE, SPREAD_OUT, truth)
    one_factor = truth[today] / BEFORE[today] * BEFORE
    assert np.median(off(table, truth)) < 0.05 < 0.25 < np.median(off(one_factor, truth))


def test_a_time_is_the_less_sure_the_fewer_of_its_blocks_were_timed():
    _, spreads = measured(BEFORE, [(0, 3)], BEFORE)
    parts = [spreads[run] / BEFORE[run] for run in ((0, 3), (0, 4), (0, 6), (5, 6))]
    assert parts == sorted(parts)
    _, more = measured(BEFORE, [(0, 3), (3, 6)], BEFORE)
    assert more[0, 6] < spreads[0, 6] / 2


@given(st.floats(0.1, 10.0), st.integers(0, 9))
def test_a_device_at_another_speed_is_found_to_be_that(factor, first):
    table, _ = measured(BEFORE, [(first, BLOCKS), (0, 1)], factor * BEFORE)
    assert off(table, factor * BEFORE).max() < 1e-3


@given(st.lists(st.floats(0.001, 1.0), min_size=BLOCKS, max_size=BLOCKS))
def test_measured_times_are_kept_and_every_time_is_above_zero(blocks):
    truth = table_of(np.array(blocks))
    table, spreads = measured(BEFORE, SPREAD_OUT, truth)
    assert [table[run] for run in SPREAD_OUT] == pytest.approx([truth[run] for run in SPREAD_OUT])
    assert (table[np.isfinite(BEFORE)] > 0.0).all()
    assert (spreads[np.isfinite(BEFORE)] >= 0.0).all()


def test_ranges_that_were_never_measured_are_not_made_up():
    before = BEFORE.copy()
    before[1:] = np.nan
    before[0, 4:] = np.nan
    table, _ = measured(before, [(0, 1), (0, 2)], 2.0 * before)
    assert np.array_equal(np.isfinite(table), np.isfinite(before))


def test_other_stages_keep_their_times():
    chain = uniform_chain(blocks=BLOCKS)
    changed = chain.with_worker(replace(chain.worker("s1"), replayed=3.0 * BEFORE))
    assert changed.names == ("s0", "s1", "s2")
    assert [worker.replayed[0, 1] / BEFORE[0, 1] for worker in changed.workers] == pytest.approx([1, 3, 1])
