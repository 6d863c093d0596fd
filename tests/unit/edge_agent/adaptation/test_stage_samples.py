"""New times of a stage: the choice of the runs to measure, and the accuracy of those derived from them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.adaptation.stage_samples import runs_to_measure, seconds_by
from tests.support.planning.chain_runs import uniform_chain

BLOCKS = 10
BEFORE = uniform_chain(blocks=BLOCKS).workers[0].replayed


def table_of(blocks, constant=0.002):
    """Tabulate the seconds of every run of these blocks, on a device that adds a constant to each run."""
    sums = np.concatenate([[0.0], np.cumsum(blocks)])
    table = constant + sums[None, :] - sums[:, None]
    table[np.tril_indices(len(sums))] = np.nan
    return table


def measured(before, today, truth):
    """Return the times measured for a stage that takes `truth` now, and the table derived from them."""
    samples = {run: float(truth[run]) for run in runs_to_measure(before, today)}
    return samples, seconds_by(samples, before)


def off(table, truth):
    """Compute the relative error of each time."""
    known = np.isfinite(truth)
    return np.abs(table[known] / truth[known] - 1.0)


@pytest.mark.parametrize("today", [(0, 3), (4, 6), (9, 10), (0, 10)])
def test_eight_samples_tell_all_times_of_a_device_that_no_factor_describes(today):
    truth = table_of(np.linspace(0.02, 0.2, BLOCKS))
    samples, table = measured(BEFORE, today, truth)
    assert next(iter(samples)) == today
    assert len(samples) == 8
    one_factor = truth[today] / BEFORE[today] * BEFORE
    assert np.median(off(table, truth)) < 0.05 < 0.25 < np.median(off(one_factor, truth))


@given(st.floats(0.1, 10.0), st.integers(0, 9))
def test_a_device_at_another_speed_is_found_to_be_that(factor, first):
    _, table = measured(BEFORE, (first, BLOCKS), factor * BEFORE)
    assert off(table, factor * BEFORE).max() < 1e-3


@given(st.lists(st.floats(0.001, 1.0), min_size=BLOCKS, max_size=BLOCKS))
def test_measured_times_are_kept_and_every_time_is_above_zero(blocks):
    samples, table = measured(BEFORE, (2, 5), table_of(np.array(blocks)))
    assert {run: table[run] for run in samples} == samples
    assert (table[np.isfinite(BEFORE)] > 0.0).all()


def test_runs_that_were_never_measured_are_neither_asked_for_nor_made_up():
    before = BEFORE.copy()
    before[1:] = np.nan
    before[0, 4:] = np.nan
    samples, table = measured(before, (0, 2), 2.0 * before)
    assert sorted(samples) == [(0, 1), (0, 2), (0, 3)], "there are no more"
    assert np.array_equal(np.isfinite(table), np.isfinite(before))


def test_other_stages_keep_their_times():
    chain = uniform_chain(blocks=BLOCKS)
    changed = chain.with_worker(replace(chain.worker("s1"), replayed=3.0 * BEFORE))
    assert changed.names == ("s0", "s1", "s2")
    assert [worker.replayed[0, 1] / BEFORE[0, 1] for worker in changed.workers] == pytest.approx([1, 3, 1])
