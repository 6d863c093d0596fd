"""Baselines of the predictor: estimates that know less or use less of the known times.

All get what was told of the new device, beside log seconds of the known devices (D x M) or operations of layers, and give log
seconds of all M sub-models.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.prediction import Floats, Measured


def one_factor(flops_L: Sequence[float], layers_ML: NDArray[np.uint8], told: Measured) -> Floats:
    """Seconds per operation, the same for all sub-models. flops_L: operations of each layer, of which some has any.

    A sub-model that has none, such as a lone activation, counts with the fewest that any has.
    """
    work_M = layers_ML.astype(float) @ np.array(flops_L)
    log_work = np.log(np.maximum(work_M, work_M[work_M > 0].min()))
    scaled: Floats = log_work + np.mean(told.log_seconds_N - log_work[told.indices_N])
    return scaled


def nearest_device(known_DM: Floats, told: Measured) -> Floats:
    """The times of the known device that is nearest in what was told."""
    distance_D = ((known_DM[:, told.indices_N] - told.log_seconds_N) ** 2).sum(axis=1)
    nearest: Floats = known_DM[int(np.argmin(distance_D))]
    return nearest


def ftpipehd(known_DM: Floats, told: Measured) -> Floats:
    """The first device's times, times the ratio of the two at what the new one runs now: here its longest measurement.

    The first device is the central node; its ratio to a worker is all that FTPipeHD keeps of that.
    """
    running = int(np.argmax(told.log_seconds_N))
    ratio = told.log_seconds_N[running] - known_DM[0, told.indices_N[running]]
    scaled: Floats = known_DM[0] + ratio
    return scaled
