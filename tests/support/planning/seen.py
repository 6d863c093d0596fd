"""A pool of candidates that a policy of the choice of a trainer is told."""

import numpy as np

from edge_agent.planning.engine.prospects import Seen


def seen(seconds, step_seconds, steps=0.0, handover=2.0, factors=(), layouts=1) -> Seen:
    """Return the knowledge of some candidates, of which each has so many layouts."""
    count = len(step_seconds)
    pauses = np.full(count, handover)
    return Seen(
        seconds=seconds,
        steps=steps,
        by_row=np.ones((count, layouts)),
        rows=np.zeros(count, dtype=np.int64),
        step_seconds=np.array(step_seconds, dtype=float),
        handover_seconds=pauses,
        moving_seconds=pauses,
        factors=np.array(factors or [1.0] * count, dtype=float),
        trip_seconds=np.zeros(count),
    )
