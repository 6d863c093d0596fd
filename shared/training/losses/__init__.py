"""The loss at the end of the chain: its value for a batch, and the labels that it accepts."""

from shared.training.losses.head import BatchLoss, LossHead, whole_loss
from shared.training.losses.labels import check_label_shape, check_labels, narrowed, widened

__all__ = [
    "BatchLoss",
    "LossHead",
    "check_label_shape",
    "check_labels",
    "narrowed",
    "whole_loss",
    "widened",
]
