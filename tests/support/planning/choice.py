"""Knowledge of candidates that a policy of the choice of a trainer is told."""

import numpy as np

from edge_agent.planning.choice import Seen


def seen(seconds, step_seconds, steps=0.0, handover=2.0, whole=(), trips=()) -> Seen:
    """Return the knowledge of some candidates."""
    count = len(step_seconds)
    return Seen(
        seconds,
        steps,
        np.array(step_seconds, dtype=float),
        np.full(count, handover),
        np.array(whole or step_seconds, dtype=float),
        np.array(trips or [0.0] * count, dtype=float),
    )
