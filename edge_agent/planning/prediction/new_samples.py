"""A device that has changed since it was measured: all its times, computed from a few new ones.

A time is a constant plus the seconds of its layers, and a change multiplies each of these by a number of its own. Most
are alike, so each is assumed to be near one common number, which is unknown beforehand. The savings and costs between
layers are assumed to stay. Few new times then determine all others (Bayesian linear regression), and how sure each is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.prediction.devices import Floats, layer_costs

_SPREAD = 0.5
"""Standard deviation of a layer's multiplier about the common one, as a share of that."""
_NOISE = 0.03
"""Standard deviation of a measurement, as a share of it."""
_ANY = 1e3
"""Standard deviation of the common multiplier: as good as nothing is known of it."""


class ChangedDevice:
    """M sub-models of L layers on one device, measured when it was another."""

    def __init__(self, layers_ML: NDArray[np.uint8], seconds_M: Floats) -> None:
        """seconds_M: their measured seconds; all above 0."""
        costs = layer_costs(layers_ML, np.log(seconds_M)[None])
        parts_MP = np.hstack([np.ones((len(layers_ML), 1)), layers_ML]) * np.append(costs.constant_D, costs.costs_DL)
        self._before_M = seconds_M
        self._shares_MP = parts_MP / parts_MP.sum(axis=1, keepdims=True)
        """Shares of the constant and of each layer in each time."""
        parts = parts_MP.shape[1]
        self._prior_PP: Floats = _SPREAD**2 * np.eye(parts) + np.full((parts, parts), _ANY**2)

    def seconds(self, measured: Sequence[int], seconds_N: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of all M sub-models by the new ones of these, and their standard deviations.

        Those that were measured are as they are, the others at least a tiny time.
        """
        shares_NP, ratios_N = self._shares_MP[list(measured)], seconds_N / self._before_M[list(measured)]
        common = float(np.exp(np.log(ratios_N).mean()))
        spread_PN = self._prior_PP @ shares_NP.T
        noise_NN = np.diag((_NOISE * ratios_N / common) ** 2)
        seen_NN = shares_NP @ spread_PN + noise_NN
        multipliers_P = common * (1.0 + spread_PN @ np.linalg.solve(seen_NN, ratios_N / common - 1.0))
        found_M: Floats = self._before_M * (self._shares_MP @ multipliers_P)
        found_M = found_M.clip(self._before_M.min() * ratios_N.min())
        found_M[list(measured)] = seconds_N
        left_PP = self._prior_PP - spread_PN @ np.linalg.solve(seen_NN, spread_PN.T)
        variances_M = ((self._shares_MP @ left_PP) * self._shares_MP).sum(axis=1)
        return found_M, common * self._before_M * np.sqrt(variances_M.clip(0.0))
