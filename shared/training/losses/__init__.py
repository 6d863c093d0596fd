"""The loss at the end of the chain: its value for a batch, and the labels that it accepts."""

from shared.training.losses.counting import COUNTS, check_counted, counts_of
from shared.training.losses.head import BatchLoss, LossHead, whole_loss
from shared.training.losses.labels import (
    LEFT_OUT,
    BatchLabels,
    check_label_count,
    check_label_shape,
    check_labels,
    class_count,
    label_tensors,
    narrowed,
    widened,
)

__all__ = [
    "COUNTS",
    "LEFT_OUT",
    "BatchLabels",
    "BatchLoss",
    "LossHead",
    "check_counted",
    "check_label_count",
    "check_label_shape",
    "check_labels",
    "class_count",
    "counts_of",
    "label_tensors",
    "narrowed",
    "whole_loss",
    "widened",
]
