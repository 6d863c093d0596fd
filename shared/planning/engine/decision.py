"""What the decision engine is told, and what it proposes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.planning.layout import Layout
from shared.planning.profile import Hop


@dataclass(frozen=True)
class Observation:
    """What links and workers did since the last one."""

    seconds: float
    """By any clock that never goes back; observe about once a second, also while nothing is sent."""
    step: int
    """Batches settled so far."""
    rates: Mapping[Hop, float | None] = field(default_factory=dict)
    """Mean bits per second from the first worker to the second, 0 when dead; None, or left out, leaves what was known."""
    trips: Mapping[Hop, float | None] = field(default_factory=dict)
    """Seconds there and back between two workers."""
    work: Mapping[str, float | None] = field(default_factory=dict)
    """Mean seconds of computing and encoding in a step of today's layout, by worker."""


@dataclass(frozen=True)
class Decision:
    """A proposal to train under another layout."""

    layout: Layout
    seconds_per_step: float
    """Predicted with it, from the last minute's rates."""
    staying_seconds_per_step: float
    """Predicted without the change."""
    migration_seconds: float
    """Predicted way of the blocks over the links; 0 when none moves."""
    abandon_after_seconds: float
    """When the blocks are still under way after so long, go back to the old layout; infinite when they have to arrive."""
