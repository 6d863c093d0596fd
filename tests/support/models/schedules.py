"""Schedules of a user's own: the factor of the learning rate of a step."""

import itertools
import random

_CALLS = itertools.count(1)


def of_inverse_root(step: int, _steps: int) -> float:
    """The inverse square root of the number of the step, from 1."""
    return (step + 1) ** -0.5


def of_nothing(step: int, _steps: int) -> float:
    """NaN late in the training."""
    return 1.0 if step < 30 else float("nan")


def of_a_negative(_step: int, _steps: int) -> float:
    """Below 0."""
    return -1.0


def of_a_failure(step: int, _steps: int) -> float:
    """No factor at the first step."""
    return 1 / step


def of_one_argument(_step: int) -> float:
    """One that has forgotten the steps of the training."""
    return 1.0


def of_chance(_step: int, _steps: int) -> float:
    """Another one each time."""
    return random.random()


def of_calls(_step: int, _steps: int) -> float:
    """One that goes by how often it was asked."""
    return 1 / next(_CALLS)
