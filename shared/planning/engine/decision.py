"""What the decision engine proposes."""

from dataclasses import dataclass

from shared.planning.cost import PlannedDeployment


@dataclass(frozen=True)
class Decision:
    """A proposal to change the deployment."""

    deployment: PlannedDeployment
    seconds_per_step: float
    """Predicted with it, from the last minute's rates."""
    staying_seconds_per_step: float
    """Predicted without the change."""
    migration_seconds: float
    """Predicted way of the blocks over the link; 0 when the cut stays."""
    abandon_after_seconds: float
    """When the blocks are still under way after so long, go back to the old deployment; infinite when they have to arrive."""
