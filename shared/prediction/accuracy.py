"""How good predictions are: the shares of sub-models within a bound, and the errors."""

from dataclasses import dataclass

import numpy as np

from shared.prediction.devices import Floats


@dataclass(frozen=True)
class Accuracy:
    """Of predictions of one device. Errors are relative to what was measured."""

    within_5: float
    """Share of sub-models whose error is 5 % at most."""
    within_10: float
    """The same of 10 %."""
    median_error: float
    worst_error: float


def accuracy(predicted_M: Floats, measured_M: Floats) -> Accuracy:
    """Compare log seconds; there is one of each at least."""
    error = np.abs(np.expm1(np.minimum(predicted_M - measured_M, 700.0)))  # exp of more is infinite
    return Accuracy(
        within_5=float(np.mean(error <= 0.05)),
        within_10=float(np.mean(error <= 0.10)),
        median_error=float(np.median(error)),
        worst_error=float(error.max()),
    )
