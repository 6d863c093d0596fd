"""The settings of the decision engine's eagerness."""

from dataclasses import dataclass, field

from edge_agent.planning.engine.ledger import RiskLimits


@dataclass(frozen=True)
class EngineConfig:
    """The eagerness of the engine."""

    margin: float = 0.05
    """Part of the time per step that a change must save over the horizon, its own cost included."""
    dwell_seconds: float = 5.0
    """Least time between changes."""
    window_seconds: float = 60.0
    """Time constant of the means by which deployments are compared."""
    horizon_beta: float = 0.8
    """Weight of the past in Eq. 14."""
    limits: RiskLimits = field(default_factory=RiskLimits)
