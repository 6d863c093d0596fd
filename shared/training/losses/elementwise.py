"""Losses of each number of the output by itself: torch's."""

from torch.nn import functional

from shared.training.losses.spec import Labels, LossSpec

MSE = LossSpec("mse", functional.mse_loss, Labels.ALIKE)
L1 = LossSpec("l1", functional.l1_loss, Labels.ALIKE)
BCE_WITH_LOGITS = LossSpec("bce_with_logits", functional.binary_cross_entropy_with_logits, Labels.ALIKE)
