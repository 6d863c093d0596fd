"""The loss at the end of the chain, by name: which labels it takes, and what it says about a batch."""

from shared.training.losses.head import BatchLoss, LossHead, whole_loss
from shared.training.losses.labels import check_label_shape, check_labels, narrowed, widened
from shared.training.losses.registry import LOSSES, labels_of
from shared.training.losses.spec import Labels, LossSpec

__all__ = [
    "LOSSES",
    "BatchLoss",
    "Labels",
    "LossHead",
    "LossSpec",
    "check_label_shape",
    "check_labels",
    "labels_of",
    "narrowed",
    "whole_loss",
    "widened",
]
