"""Losses of an output that says how likely each class is: torch's."""

from torch.nn import functional

from shared.training.losses.spec import Labels, LossSpec

CROSS_ENTROPY = LossSpec("cross_entropy", functional.cross_entropy, Labels.CLASSES)
