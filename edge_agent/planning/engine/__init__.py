"""The decision engine: when to change the deployment of a run that trains."""

from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.decision import Decision, Observation, Outcome, Reason
from edge_agent.planning.engine.engine import Engine
from edge_agent.planning.engine.measuring import BlockRange, Usual

__all__ = [
    "BlockRange",
    "Decision",
    "Engine",
    "EngineConfig",
    "Observation",
    "Outcome",
    "Reason",
    "Usual",
]
