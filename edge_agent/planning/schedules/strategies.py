"""Strategies by which the members of a group exchange parameters, by name."""

from collections.abc import Callable, Mapping
from functools import partial

from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.papers.dynacomm import dynacomm
from edge_agent.planning.schedules.barrier import layerwise, sequential, with_barrier
from edge_agent.planning.schedules.flow import flow
from edge_agent.planning.schedules.ibatch import ibatch_backward, ibatch_forward
from edge_agent.planning.schedules.layers import Layers
from edge_agent.planning.schedules.schedule import ExchangeSchedule

STRATEGIES: Mapping[str, Callable[[Layers], ExchangeSchedule]] = {
    SEQUENTIAL: partial(with_barrier, SEQUENTIAL, forward=sequential, backward=sequential),
    LAYERWISE: partial(with_barrier, LAYERWISE, forward=layerwise, backward=layerwise),
    IBATCH: partial(with_barrier, IBATCH, forward=ibatch_forward, backward=ibatch_backward),
    DYNACOMM: partial(with_barrier, DYNACOMM, forward=dynacomm, backward=dynacomm),
    FLOW: flow,
}
"""Each strategy's schedule of given layers."""
