"""Simulated runs: their length in steps, and the changes of layout in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.layout import Layout
from shared.errors import PlanError

PROBE_SECONDS = 5.0
"""Time for which links are measured before training starts. It counts into no run."""

OBSERVE_SECONDS = 1.0
"""Interval of the link monitor's reports to the engine."""


@dataclass(frozen=True)
class Switch:
    """A change of deployment during a run."""

    seconds: float
    """Time at which training continued with the new deployment, or with the old one after an attempt that was given up."""
    layout: Layout
    """Deployment with which it continued."""
    paused_seconds: float
    """Time without a batch in work: the blocks' move over the link."""


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    seconds: float
    """Duration of the run."""
    steps: float
    """Batches settled by then. The one under way counts in proportion."""
    start: Layout
    switches: tuple[Switch, ...] = ()

    @property
    def seconds_per_100_steps(self) -> float:
        """Return the figure by which runs over one trace compare."""
        return 100 * self.seconds / self.steps if self.steps else math.inf


def check_duration(seconds: float) -> None:
    """Refuse a run of no time or of endless time. Raises PlanError."""
    if not 0.0 < seconds < math.inf:
        raise PlanError(f"the run lasts {seconds} s; it must be above 0 and finite")


def steps_until(settled: Sequence[float], begin: float, end: float) -> float:
    """Return the batches settled by the end. Between two settlements, they count in proportion."""
    times = np.array([begin, *settled])
    return float(np.interp(end, times, np.arange(len(times))))
