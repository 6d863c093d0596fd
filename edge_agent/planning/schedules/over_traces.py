"""Strategies over a trace of the members' link."""

from collections.abc import Sequence

import numpy as np

from edge_agent.planner_names import SEQUENTIAL
from edge_agent.planning.profile import Profile
from edge_agent.planning.runs.run import check_duration
from edge_agent.planning.schedules.profiled import layers_of
from edge_agent.planning.schedules.strategies import STRATEGIES
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError

WINDOW_SECONDS = 10.0


def compare_strategies(
    profile: Profile, link: LinkTrace, members: int, seconds: float, strategies: Sequence[str]
) -> dict[str, float]:
    """Return the seconds of 100 steps by each strategy, with those of the sequential one first, which others are compared with.

    The trace of the link starts again when it ends.
    Every ten seconds each makes a schedule for the rates of these. PlanError for a profile or a group that cannot be scheduled,
    and for a run of no time.
    """
    check_duration(seconds)
    steps = dict.fromkeys((SEQUENTIAL, *strategies), 0.0)
    begins = np.arange(0.0, seconds, WINDOW_SECONDS).tolist()
    for begin, end in zip(begins, [*begins[1:], seconds], strict=True):
        layers = layers_of(profile, link.rates_between(begin, end)).among(members)
        for strategy in steps:
            step_seconds = STRATEGIES[strategy](layers).step_seconds
            if step_seconds == 0.0:
                raise PlanError(
                    "a step of the profile takes no time at all; profile a model that computes or has parameters"
                )
            steps[strategy] += (end - begin) / step_seconds
    return {strategy: 100 * seconds / done for strategy, done in steps.items()}
