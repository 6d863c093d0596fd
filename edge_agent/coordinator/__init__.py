"""The coordinator: decides what a run does after each event, by one table. Knows no gRPC, no torch and no clock.

Others notice, tell what has happened, and carry out the answer. `python -m edge_agent.coordinator` prints the table.
"""

from edge_agent.coordinator.actions import Action
from edge_agent.coordinator.decide import Coordinator, decide
from edge_agent.coordinator.events import (
    BoundaryReached,
    ChangeDone,
    ChangeFailed,
    GoodWeightsWanted,
    LinkEnded,
    RunEvent,
    SessionBegun,
    SessionGone,
    StepHeldUp,
    StepsDone,
    StoodInFor,
    StopReached,
    TrainersAnswered,
    TrainerSilent,
    TrainersJoined,
    TrainersParted,
    TrainerStopping,
    WaySought,
    WayTaken,
    WorkFailed,
)
from edge_agent.coordinator.state import CoordinatorState, Phase

__all__ = [
    "Action",
    "BoundaryReached",
    "ChangeDone",
    "ChangeFailed",
    "Coordinator",
    "CoordinatorState",
    "GoodWeightsWanted",
    "LinkEnded",
    "Phase",
    "RunEvent",
    "SessionBegun",
    "SessionGone",
    "StepHeldUp",
    "StepsDone",
    "StoodInFor",
    "StopReached",
    "TrainerSilent",
    "TrainerStopping",
    "TrainersAnswered",
    "TrainersJoined",
    "TrainersParted",
    "WaySought",
    "WayTaken",
    "WorkFailed",
    "decide",
]
