"""The decision engine: when to change the deployment of a run that trains."""

from shared.planning.engine.config import EngineConfig
from shared.planning.engine.decision import Decision, Observation, Reason
from shared.planning.engine.engine import Engine
from shared.planning.engine.ledger import RiskLimits
from shared.planning.engine.measuring import BlockRange, Usual
from shared.planning.engine.outcome import Outcome

__all__ = [
    "BlockRange",
    "Decision",
    "Engine",
    "EngineConfig",
    "Observation",
    "Outcome",
    "Reason",
    "RiskLimits",
    "Usual",
]
