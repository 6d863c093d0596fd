"""Pairs of processes that take turns: one goes on at a time, and the cost of a step is that of its own turns."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.turns import Pair, killed_after, turns
from shared.errors import IsthmusError

STEPS = """
import sys, time, numpy
count = numpy.memmap(sys.argv[1], numpy.int64, "r+", shape=1)
while True:
    began = time.process_time()
    while time.process_time() < began + float(sys.argv[2]): pass
    count[0] += 1
"""


def counting(file: Path, seconds: float) -> tuple[subprocess.Popen[str], Callable[[], int]]:
    count = np.memmap(file, np.int64, "w+", shape=1)
    command = [sys.executable, "-c", STEPS, str(file), str(seconds)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True), lambda: int(count[0])


def test_one_pair_goes_on_at_a_time_and_its_steps_cost_what_they_take(tmp_path):
    with ExitStack() as stack:
        pairs = {}
        for name, seconds in {"quick": 0.001, "slow": 0.003}.items():
            edge, steps = counting(tmp_path / name, seconds)
            cloud, _ = counting(tmp_path / f"{name}-cloud", 0.001)
            stack.enter_context(killed_after(edge, cloud))
            pairs[name] = Pair(edge, cloud, steps)
        costs = turns(pairs, warm_up_steps=10, seconds=0.2, count=4)
        before = pairs["slow"].steps()
        pairs["quick"].turn(0.1)
        assert pairs["slow"].steps() == before
        rest = [pair.steps() for pair in pairs.values()]
        assert rest == [pair.steps() for pair in pairs.values()]
    assert {name: len(of) for name, of in costs.items()} == {"quick": 4, "slow": 4}
    for name, seconds in {"quick": 0.001, "slow": 0.003}.items():
        for cost in costs[name]:
            assert cost.edge.seconds == pytest.approx(seconds, rel=0.2)
            assert cost.step >= 0.8 * seconds


def test_an_agent_that_has_ended_is_said(tmp_path):
    cloud, steps = counting(tmp_path / "steps", 0.001)
    edge = subprocess.Popen([sys.executable, "-c", ""], stderr=subprocess.PIPE, text=True)
    with killed_after(edge, cloud):
        pair = Pair(edge, cloud, lambda: min(steps(), 0))
        with pytest.raises(IsthmusError, match="has ended with 0"):
            turns({"one": pair}, 10, 0.1, 1)
        with pytest.raises(IsthmusError, match="has ended with 0"):
            pair.stop()
