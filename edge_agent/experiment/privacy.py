"""What would show raw samples to others, and whether the configuration permits it."""

import torch

from edge_agent.config import EdgeConfig
from edge_agent.data import Batch
from shared.errors import DataError


def check_labels_may_leave(place: str, batch: Batch, config: EdgeConfig) -> None:
    """Refuse labels that are the inputs themselves, for labels go to the trainer. Raises DataError.

    place: the key of the data set that `batch` begins, such as data.train.
    """
    inputs, labels = batch.inputs.reshape(-1), batch.labels.reshape(-1)
    if "trainer" in config.privacy.inputs_to or inputs.numel() != labels.numel():
        return
    if torch.equal(inputs, labels.to(inputs.dtype)):
        raise DataError(
            f"{place}: the labels are the inputs themselves, so raw samples would go to the trainer; if it may see them, set "
            'privacy.inputs_to to ["trainer"]'
        )
