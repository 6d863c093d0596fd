"""Strategies by which the members of a group exchange parameters, by name, and compared over a trace of their link."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.papers.dynacomm import dynacomm
from edge_agent.planning.profile import Profile
from edge_agent.planning.runs.simulator import check_duration
from edge_agent.planning.schedules.barrier import (
    ibatch_backward,
    ibatch_forward,
    layerwise,
    sequential,
    with_barrier,
)
from edge_agent.planning.schedules.flow import flow
from edge_agent.planning.schedules.layers import Layers, layers_of
from edge_agent.planning.schedules.schedule import ExchangeSchedule
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError

WINDOW_SECONDS = 10.0
"""Time after which each makes a schedule again."""

STRATEGIES: Mapping[str, Callable[[Layers], ExchangeSchedule]] = {
    SEQUENTIAL: partial(with_barrier, SEQUENTIAL, forward=sequential, backward=sequential),
    LAYERWISE: partial(with_barrier, LAYERWISE, forward=layerwise, backward=layerwise),
    IBATCH: partial(with_barrier, IBATCH, forward=ibatch_forward, backward=ibatch_backward),
    DYNACOMM: partial(with_barrier, DYNACOMM, forward=dynacomm, backward=dynacomm),
    FLOW: flow,
}
"""Each strategy's schedule of given layers."""


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
