"""Schedules: when a member of a group pulls parameters and pushes gradients, layer by layer. Numbers only.

With a barrier (paper 002): papers/dynacomm.py is its cost and the best partition, barrier.py its rivals.
Without: flow.py. Layers (layers.py) come from a file or a profile. again.py makes schedules again.
"""

from edge_agent.planning.papers.dynacomm import Bounds, Direction, Segment, dynacomm
from edge_agent.planning.schedules.again import ScheduleAgain, bounds_of
from edge_agent.planning.schedules.flow import bound_seconds, run_seconds
from edge_agent.planning.schedules.layers import Layers, check_members, layers_of, load_layers, parse_layers
from edge_agent.planning.schedules.schedule import BACKWARD, FORWARD, PULL, PUSH, ExchangeSchedule, LayerEvent
from edge_agent.planning.schedules.strategies import STRATEGIES, compare_strategies

__all__ = [
    "BACKWARD",
    "FORWARD",
    "PULL",
    "PUSH",
    "STRATEGIES",
    "Bounds",
    "Direction",
    "ExchangeSchedule",
    "LayerEvent",
    "Layers",
    "ScheduleAgain",
    "Segment",
    "bound_seconds",
    "bounds_of",
    "check_members",
    "compare_strategies",
    "dynacomm",
    "layers_of",
    "load_layers",
    "parse_layers",
    "run_seconds",
]
