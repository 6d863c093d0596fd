"""How well a device that was never seen would be predicted, beside what simpler estimates would make of the same times."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import PlanError
from shared.prediction.accuracy import Accuracy, accuracy
from shared.prediction.baselines import ftpipehd, nearest_device, one_factor, operations
from shared.prediction.devices import Floats, KnownDevices
from shared.prediction.gaussian import Measured
from shared.prediction.predictor import new_device
from shared.prediction.table import LatencyTable

Network = Callable[[NDArray[np.uint8], Floats, NDArray[np.intp], Measured], Floats]
"""The paper's network: sub-models (M x L), log seconds of the known devices (D x M), the reference, what was measured; log
seconds of all M."""


@dataclass(frozen=True)
class Evaluation:
    """How well one unseen device is predicted."""

    device: str
    used: int
    """How many of its samples were used to predict the others."""
    judged: int
    """How many others there are."""
    predictor: Accuracy
    baselines: dict[str, Accuracy | None]
    """None for the factor per operation where no table counts operations."""


def evaluate(devices: KnownDevices, unseen: LatencyTable, more: int, network: Network) -> Evaluation:
    """Predict the unseen device from its reference and so many samples more, and judge by all the others.

    The predictor chooses which ones more. Raises PlanError where nothing is left to judge by, and as `new_device` does.
    """
    device = new_device(devices, unseen)
    known = dict(zip(device.measured.indices_N.tolist(), device.measured.log_seconds_N.tolist(), strict=True))
    candidates = np.array([index for index in known if index not in set(device.reference.tolist())], dtype=np.intp)
    if more >= len(candidates):
        raise PlanError(
            f"the table of {unseen.device} has {len(candidates)} samples beside its reference; {more} of them are to be "
            "used, so that none is left to judge by"
        )
    used = np.concatenate([device.reference, device.model.most_telling(device.reference, candidates, more)]).astype(
        np.intp
    )
    judged = np.array([index for index in known if index not in set(used.tolist())], dtype=np.intp)
    truth_J = np.array([known[index] for index in judged.tolist()])
    measured = Measured(used, np.array([known[index] for index in used.tolist()]))
    known_DM = device.model.log_seconds_DM
    work_M = None if devices.flops_L is None else operations(devices.flops_L, device.layers_ML)
    predictions = {
        "flops": None if work_M is None else one_factor(work_M, measured),
        "nearest": nearest_device(known_DM, measured),
        "ftpipehd": ftpipehd(known_DM, measured),
        "network": network(device.layers_ML, known_DM, device.reference, measured),
    }
    return Evaluation(
        device=unseen.device,
        used=len(used),
        judged=len(judged),
        predictor=accuracy(device.model.predict(measured)[judged], truth_J),
        baselines={
            name: None if predicted is None else accuracy(predicted[judged], truth_J)
            for name, predicted in predictions.items()
        },
    )
