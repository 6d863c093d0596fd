"""The settings of the decision engine: how eager it is, and what it may risk."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineConfig:
    """The eagerness of the engine, and the limits of its risk."""

    margin: float = 0.05
    """Part of the time per step that a change must save over the horizon, its own cost included."""
    dwell_seconds: float = 5.0
    """Least time between changes."""
    window_seconds: float = 60.0
    """Time constant of the means by which deployments are compared."""
    horizon_beta: float = 0.8
    """Weight of the past in Eq. 14."""
    loss_fraction: float = 0.01
    """Part of the run's steps that may be lost to changes that turn out wrong."""
    proof_seconds: float = 300.0
    """Time for which a lead must have lasted before it counts: the longest period of an oscillation that does no harm."""
    memory_seconds: float = 600.0
    """Time constant with which a lead is forgotten."""
