"""The cost of many sessions: the figures of a window, and a window of two agents."""

import math
import os
import time

import pytest

from benchmarks.sessions import BATCH, HERE, measured, row
from benchmarks.support.load import Load, config, cpu_seconds


def test_a_row_counts_all_agents_and_compares_the_quickest_with_the_slowest():
    found = row("ours", Load(2.0, [10, 20], trainer_cpu_seconds=0.3, agents_cpu_seconds=0.6))
    assert (found.agents, found.samples_per_second) == (2, BATCH * 30 / 2.0)
    assert found.most_over_least == 2.0
    assert found.trainer_cpu_milliseconds == pytest.approx(10.0)
    assert found.agents_cpu_milliseconds == pytest.approx(20.0)


def test_an_agent_that_does_nothing_is_not_overlooked():
    assert math.isinf(row("ours", Load(1.0, [0, 5], 0.1, 0.1)).most_over_least)


def test_the_processor_time_of_a_process_is_that_of_all_its_threads():
    before, own = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < own + 0.2:
        pass
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(os.getpid()) - before == pytest.approx(time.process_time() - own, abs=3 * tick)


def test_a_row_counts_the_samples_that_the_agents_train_on():
    assert config("127.0.0.1:1").data.batch_size == BATCH


@pytest.mark.full
def test_two_agents_train_at_the_same_time():
    load = measured(HERE, 2, 0.5)
    assert len(load.steps) == 2
    assert load.seconds >= 0.5
    assert load.trainer_cpu_seconds > 0
