"""Policies: the input of the choice of a trainer, and its answer.

A policy knows the N candidates by their places in a list that never changes, the device alone among them. It knows
nothing of links, layouts or models, and is told what a step takes with each.
"""

from dataclasses import dataclass

from edge_agent.planning.measurements import Floats


@dataclass(frozen=True, eq=False)
class Seen:
    """Knowledge of the candidates at one moment. Columns have shape (N,)."""

    seconds: float
    """Time by any clock that never goes back."""
    steps: float
    """Batches settled so far."""
    step_seconds: Floats
    """Seconds a step with each: with today's layout for the present one, with the best for others. Infinite where it is out of
    reach or about to stop."""
    handover_seconds: Floats
    """Pause of training on the way to each."""
    whole_seconds: Floats
    """Seconds of a step of the whole model there, as paper 003 probes it. Infinite where it is out of reach."""
    trip_seconds: Floats
    """Round trips."""


@dataclass(frozen=True)
class Move:
    """The proposal to train with another candidate, or with another cut."""

    candidate: int
    cut: int | None = None
    """The cut; None leaves it to the engine."""
