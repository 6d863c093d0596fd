"""What a predictor is compared with: estimates that know less or use less of what is known.

All get log seconds of the known devices (D x M), the indices of what was measured of the new one, and its log seconds (N), and
give log seconds of all M sub-models.
"""

import numpy as np
from numpy.typing import NDArray

from shared.prediction.devices import Floats
from shared.prediction.gaussian import Measured


def one_factor(work_M: Floats, measured: Measured) -> Floats:
    """Seconds per operation, the same for all sub-models. work_M: operations, of which none may be 0."""
    log_work = np.log(work_M)
    scaled: Floats = log_work + np.mean(measured.log_seconds_N - log_work[measured.indices_N])
    return scaled


def nearest_device(known_DM: Floats, measured: Measured) -> Floats:
    """The times of the known device that is nearest in what was measured."""
    distance_D = ((known_DM[:, measured.indices_N] - measured.log_seconds_N) ** 2).sum(axis=1)
    nearest: Floats = known_DM[int(np.argmin(distance_D))]
    return nearest


def ftpipehd(known_DM: Floats, measured: Measured) -> Floats:
    """The first device's times, times the ratio of the two at what the new one runs now: here its longest measurement.

    The first device is the central node; its ratio to a worker is all that FTPipeHD keeps of that.
    """
    running = int(np.argmax(measured.log_seconds_N))
    ratio = measured.log_seconds_N[running] - known_DM[0, measured.indices_N[running]]
    scaled: Floats = known_DM[0] + ratio
    return scaled


def operations(flops_L: Floats, layers_ML: NDArray[np.uint8]) -> Floats | None:
    """Operations of each sub-model; one that has none, such as a lone activation, counts with the fewest that any has.

    None where no layer has any.
    """
    work_M = layers_ML.astype(float) @ flops_L
    if not work_M.any():
        return None
    counted: Floats = np.maximum(work_M, work_M[work_M > 0].min())
    return counted
