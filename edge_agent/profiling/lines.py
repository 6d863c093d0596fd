"""Lines of least squares through measured seconds, by bytes or samples."""

from collections.abc import Sequence

import numpy as np

from edge_agent.planning.measurements import Linear


def line_through(points: Sequence[tuple[float, float]]) -> Linear:
    """Return the line of least squares through (units, seconds) of which neither slope nor constant is below 0; none through no
    points."""
    if not points:
        return Linear(0.0, 0.0)
    units, seconds = np.array(points).T
    around = units - units.mean()
    spread = float((around**2).sum())
    slope = max(0.0, float((around * seconds).sum()) / spread) if spread else 0.0
    constant = float(seconds.mean() - slope * units.mean())
    if constant < 0:  # The best line then begins at nothing.
        return Linear(0.0, float((units * seconds).sum() / (units**2).sum()))
    return Linear(constant, slope)
