"""A device that has changed since it was measured: all its times, computed from a few new ones.

A time is a constant plus the seconds of its layers, and a change multiplies each of these by a number of its own. Most
are alike, so each is assumed to be near one common number, which is unknown beforehand. The savings and costs between
layers are assumed to stay. Few new times then determine all others (Bayesian linear regression), and how sure each is.
"""

from collections.abc import Mapping

import numpy as np

from edge_agent.planning.prediction.devices import Floats, layer_costs
from edge_agent.planning.prediction.table import SHORTEST_SECONDS, contiguous, vector

_SPREAD = 0.5
"""Standard deviation of a layer's multiplier about the common one, as a share of that."""
_NOISE = 0.03
"""Standard deviation of a measurement, as a share of it."""
_ANY = 1e3
"""Standard deviation of the common multiplier: as good as nothing is known of it."""


class ChangedDevice:
    """M runs of the blocks of a model on one device, measured when it was another."""

    def __init__(self, seconds: Floats) -> None:
        """seconds: measured then of the blocks [i, j), at [i, j]; NaN where a run was not measured. Shape (L + 1, L + 1)."""
        blocks = len(seconds) - 1
        self._seconds = seconds
        self._runs = [run for run in contiguous(blocks) if np.isfinite(seconds[run])]
        layers_ML = np.array([vector(*run, blocks) for run in self._runs], dtype=np.uint8)
        self._before_M = np.array([seconds[run] for run in self._runs]).clip(SHORTEST_SECONDS)
        costs = layer_costs(layers_ML, np.log(self._before_M)[None])
        parts_MP = np.hstack([np.ones((len(layers_ML), 1)), layers_ML]) * np.append(costs.constant_D, costs.costs_DL)
        self._shares_MP = parts_MP / parts_MP.sum(axis=1, keepdims=True)
        """Shares of the constant and of each layer in each time."""
        parts = parts_MP.shape[1]
        self._prior_PP: Floats = _SPREAD**2 * np.eye(parts) + np.full((parts, parts), _ANY**2)

    def ratios(self, samples: Mapping[tuple[int, int], float]) -> tuple[Floats, Floats]:
        """Return the ratio of each run's seconds today to those of then, and its standard deviation, as tables.

        samples: seconds of one run or more today. NaN stands where a run was never measured.
        """
        rows, tables = tuple(np.array(self._runs).T), []
        for each in self._found([self._runs.index(run) for run in samples], np.array(list(samples.values()))):
            table = np.full_like(self._seconds, np.nan)
            table[rows] = each / self._seconds[rows]
            tables.append(table)
        return tables[0], tables[1]

    def _found(self, measured: list[int], seconds_N: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of all M runs by the new ones of these, and their standard deviations.

        Those that were measured are as they are, the others at least a tiny time.
        """
        shares_NP, ratios_N = self._shares_MP[measured], seconds_N / self._before_M[measured]
        common = float(np.exp(np.log(ratios_N).mean()))
        spread_PN = self._prior_PP @ shares_NP.T
        noise_NN = np.diag((_NOISE * ratios_N / common) ** 2)
        seen_NN = shares_NP @ spread_PN + noise_NN
        multipliers_P = common * (1.0 + spread_PN @ np.linalg.solve(seen_NN, ratios_N / common - 1.0))
        found_M: Floats = self._before_M * (self._shares_MP @ multipliers_P)
        found_M = found_M.clip(self._before_M.min() * ratios_N.min())
        found_M[measured] = seconds_N
        left_PP = self._prior_PP - spread_PN @ np.linalg.solve(seen_NN, spread_PN.T)
        variances_M = ((self._shares_MP @ left_PP) * self._shares_MP).sum(axis=1)
        return found_M, common * self._before_M * np.sqrt(variances_M.clip(0.0))
