"""The cost of a step, and of a change: layouts under conditions. Arithmetic alone; families/ knows the permitted choices."""

from edge_agent.planning.cost.conditions import Conditions, Direction, conditions_of
from edge_agent.planning.cost.layouts import (
    computing_seconds,
    crossing_bits,
    encoding_seconds,
    loads_of,
    simulated_loads,
    simulated_seconds,
    stacked_loads,
)
from edge_agent.planning.cost.loads import Loads, Paths, Slower, Times, joined, pipeline_seconds, steady_seconds
from edge_agent.planning.cost.programs import loads_of_step
from edge_agent.planning.cost.switching import (
    BETWEEN_RATE,
    LOST_RATE,
    DeviceLinks,
    Runs,
    bits_between,
    handed_over_bits,
    handover_seconds,
    moved_bits,
    moving_seconds,
    runs_of,
)

__all__ = [
    "BETWEEN_RATE",
    "LOST_RATE",
    "Conditions",
    "DeviceLinks",
    "Direction",
    "Loads",
    "Paths",
    "Runs",
    "Slower",
    "Times",
    "bits_between",
    "computing_seconds",
    "conditions_of",
    "crossing_bits",
    "encoding_seconds",
    "handed_over_bits",
    "handover_seconds",
    "joined",
    "loads_of",
    "loads_of_step",
    "moved_bits",
    "moving_seconds",
    "pipeline_seconds",
    "runs_of",
    "simulated_loads",
    "simulated_seconds",
    "stacked_loads",
    "steady_seconds",
]
