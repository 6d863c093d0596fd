"""Plans: the answers of planning. Every search, planner and comparison answers with plans, of several the best first."""

from dataclasses import dataclass

from edge_agent.planning.layout import Layout


@dataclass(frozen=True)
class Plan:
    """A layout, and what a step of it takes."""

    layout: Layout
    seconds_per_step: float
    """Seconds of a step with a full pipeline; of a planner that knows a horizon, the mean over it (Eq. 12)."""
    migration_seconds: float = 0.0
    """Eq. 13 from today's cut; 0 if there is none."""
    evaluated: int = 1
    """Number of layouts that were weighed for it."""
    is_proved: bool = True
    """False if a better layout may exist, because they are too many to be tried one by one."""
    name: str = ""
    """Name by which a ranking knows it: of a trainer, a group, a line of a file; empty where its layout says enough."""
    members: int | None = None
    """Members of a group that train so in step; None for one device without a group."""
    reason: str = ""
    """Reason for its seconds, or against it, where it was asked why the plan has this place among others."""

    @property
    def samples_per_second(self) -> float:
        """Return the pace of all devices together."""
        batch_size = max(tile.rows.end for tile in self.layout.tiles)
        return (self.members or 1) * batch_size / self.seconds_per_step

    @property
    def blocks_here(self) -> int:
        """Return the blocks before the cut of two workers: all of the model where one is alone."""
        return self.layout.tiles[0].stop
