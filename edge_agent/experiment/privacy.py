"""Privacy of raw samples: the ways in which a placement shows them to others, and whether the configuration permits these."""

from collections.abc import Iterable

import torch
from torch import Tensor

from edge_agent.config import PrivacyConfig
from edge_agent.data import Batch
from shared.errors import DataError
from shared.model.reading_off import NOTABLE_SHARE
from shared.placement import Permissions
from shared.training.losses import label_tensors

_ENOUGH_SAMPLES = 16
"""Among fewer, columns may look alike by chance."""
_LABELS_TRIED = 128
"""Numbers of a label that are compared with all of a sample's."""
_ALIKE = 0.99
"""The correlation from which on one number gives the other."""


def labels_are_inputs(batch: Batch) -> bool:
    """Tell whether the labels of a batch give a notable share of its samples, number by number.

    Those of an autoencoder do, scaled or not, and those of a model of texts, which are the tokens one place further.
    """
    return any(_gives(labels, inputs) for labels in label_tensors(batch.labels) for inputs in batch.features)


def _gives(labels_B: Tensor, inputs_B: Tensor) -> bool:
    inputs, labels = (numbers.reshape(len(inputs_B), -1).double() for numbers in (inputs_B, labels_B))
    if len(inputs) < _ENOUGH_SAMPLES:
        return torch.equal(inputs, labels)
    inputs, labels = _standardised(inputs), _standardised(labels)
    tried = labels[:, :: max(1, labels.shape[1] // _LABELS_TRIED)]
    if not inputs.shape[1] or not tried.shape[1]:
        return False
    given = ((inputs.T @ tried).abs().amax(0) >= _ALIKE).double().mean() * labels.shape[1]
    return bool(given >= NOTABLE_SHARE * inputs.shape[1])


def _standardised(numbers_BN: Tensor) -> Tensor:
    """The columns that vary, with mean 0 and length 1."""
    centred = numbers_BN - numbers_BN.mean(0)
    lengths = centred.norm(dim=0)
    varying = lengths > 0
    standardised: Tensor = centred[:, varying] / lengths[varying]
    return standardised


def permissions_of(privacy: PrivacyConfig, labels_to: frozenset[str] | None) -> Permissions:
    """Return what the configuration permits. labels_to: workers that may have labels; None means those with the loss."""
    return Permissions(frozenset(privacy.inputs_to), labels_to, frozenset(privacy.gradients_to))


def check_labels_may_leave(datasets: Iterable[str], receivers: Iterable[str], privacy: PrivacyConfig) -> None:
    """Refuse to send labels that are the inputs themselves to a worker that may not have inputs. Raises DataError.

    datasets: the keys of those whose labels are their inputs, such as data.train. receivers: the workers that labels go to.
    """
    for key in datasets:
        for receiver in receivers:
            if receiver not in privacy.inputs_to:
                raise DataError(
                    f"{key}: the labels are the inputs themselves, so raw samples would go to the trainer; if it may see them, "
                    f'set privacy.inputs_to to ["{receiver}"]'
                )
