"""Agents with their trainers that take turns: one pair goes on while the others stand still.

The speed of a shared machine changes by more than two trees differ, within seconds. Where runs take turns every second or so,
all of them have the same share of each of its moods. A run that stands still while it reads a batch takes its data for slow,
and reads on another thread for a while: turns of one run are not quite independent.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from benchmarks.support.process_use import ProcessUse, use_until_now
from shared.errors import IsthmusError


@dataclass(frozen=True)
class Cost:
    """The processor time of the edge's process, that of the other one, and the seconds that pass."""

    edge: ProcessUse
    cloud: ProcessUse
    step: float

    def less(self, other: Self, steps: int) -> "Cost":
        """The cost of a step, where this run had so many steps more than `other`."""
        return Cost(
            self.edge.less(other.edge, steps), self.cloud.less(other.cloud, steps), (self.step - other.step) / steps
        )


@dataclass(frozen=True)
class Pair:
    """An agent and its trainer, children of this process. steps: gives the number of steps until now."""

    edge: subprocess.Popen[str]
    cloud: subprocess.Popen[str]
    steps: Callable[[], int]

    def wait_for(self, steps: int) -> int:
        """Wait until so many steps are done; returns how many are by then. Raises IsthmusError where the agent ends before."""
        while (done := self.steps()) < steps:
            _check_alive(self.edge)
            time.sleep(0.01)
        return done

    def stop(self) -> None:
        """Have both stand still, and wait until they do. Raises IsthmusError where one has ended."""
        for process in (self.edge, self.cloud):
            _check_alive(process)
            process.send_signal(signal.SIGSTOP)
            if process.returncode is None:  # send_signal looks, too
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            _check_alive(process)

    def turn(self, seconds: float) -> Cost:
        """Let both go on for so long; returns the cost of a step. Raises IsthmusError where they do none, or one has ended."""
        used, steps, began = self._used(), self.steps(), time.monotonic()
        for process in (self.edge, self.cloud):
            process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.stop()
        passed = time.monotonic() - began
        (edge, cloud), more = self._used(), self.steps() - steps
        if not more:
            raise IsthmusError(f"no step was done in a turn of {seconds:g} s; let turns be longer (--seconds)")
        return Cost(edge.less(used[0], more), cloud.less(used[1], more), passed / more)

    def _used(self) -> tuple[ProcessUse, ProcessUse]:
        return use_until_now(self.edge.pid), use_until_now(self.cloud.pid)


def _check_alive(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise IsthmusError(f"a process that was to be measured has ended with {process.returncode}")


@contextmanager
def killed_after(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Kill processes at the end of the body, also those that stand still."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def turns(pairs: Mapping[str, Pair], warm_up_steps: int, seconds: float, count: int) -> dict[str, list[Cost]]:
    """The costs of a step in so many turns of each pair, after all have done some steps; they are the first by turns."""
    for pair in pairs.values():
        pair.wait_for(warm_up_steps)
    for pair in pairs.values():
        pair.stop()
    costs: dict[str, list[Cost]] = {name: [] for name in pairs}
    for turn in range(count):
        for name in sorted(pairs, reverse=turn % 2 == 1):
            costs[name].append(pairs[name].turn(seconds))
    return costs
