"""The horizon over which a change must pay (paper 000, Eq. 14): steps between events.

At an event, today's deployment becomes, or ceases to be, worse than the best by the margin. A state that has lasted
longer than the horizon is expected to last as long again.
"""

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.measurements import Bools, Floats


class Horizon:
    """The expected number of steps ahead, computed from the events so far."""

    def __init__(self, margin: float, beta: float, first_steps: float = DEFAULT_HORIZON_STEPS) -> None:
        """margin: part of the best speed. beta: weight of the past in the mean. first_steps: the mean before any event."""
        self._margin, self._beta = margin, beta
        self._steps = float(first_steps)
        self._event_step = 0.0
        self.is_behind = False
        """True if today's deployment is worse than the best by the margin."""

    def begin(self, step: float) -> None:
        """Count from this step."""
        self._event_step = step

    def go_back(self, step: float) -> None:
        """Note that the run does the steps from this one on again."""
        self._event_step = min(step, self._event_step)

    def note(self, step: float, speeds: Floats, allowed: Bools, current: int) -> None:
        """Note the speeds of the candidates. Today's falls behind by the whole margin, and is level again within half of it.

        speeds: shape (n,). allowed: candidates for the best, shape (n,). current: today's candidate.
        """
        margin = self._margin / 2 if self.is_behind else self._margin
        is_behind = bool(speeds[current] < (1.0 - margin) * speeds[allowed].max())
        if is_behind != self.is_behind:
            self._steps = self._beta * self._steps + (1.0 - self._beta) * (step - self._event_step)
            self.is_behind, self._event_step = is_behind, step

    def steps(self, step: float, total_steps: float) -> float:
        """Return the horizon at a step of a run of so many; 1 or more, and not beyond the run's end."""
        return min(max(1.0, self._steps, step - self._event_step), max(1.0, total_steps - step))
