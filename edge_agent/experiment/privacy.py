"""What would show raw samples to others, and whether the configuration permits it."""

from collections.abc import Iterable

import torch

from edge_agent.config import PrivacyConfig
from edge_agent.data import Batch
from shared.errors import DataError


def labels_are_inputs(batch: Batch) -> bool:
    """Whether the labels of a batch are its samples, as those of an autoencoder are."""
    inputs, labels = batch.inputs.reshape(-1), batch.labels.reshape(-1)
    return inputs.numel() == labels.numel() and torch.equal(inputs, labels.to(inputs.dtype))


def check_labels_may_leave(datasets: Iterable[str], receivers: Iterable[str], privacy: PrivacyConfig) -> None:
    """Refuse labels that are the inputs themselves where they go to who may not have inputs. Raises DataError.

    datasets: the keys of those whose labels are their inputs, such as data.train. receivers: the workers that labels go to.
    """
    for key in datasets:
        for receiver in receivers:
            if receiver not in privacy.inputs_to:
                raise DataError(
                    f"{key}: the labels are the inputs themselves, so raw samples would go to the trainer; if it may see them, "
                    f'set privacy.inputs_to to ["{receiver}"]'
                )
