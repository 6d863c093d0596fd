"""The loss of a language model."""

import torch.nn.functional as F
from torch import Tensor


def token_cross_entropy(
    output: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """The mean cross entropy of all tokens of a batch whose label is not -100, or the sum.

    output: (B, T, V), a score of each of V tokens at each place. labels: (B, T), int64. weight: (V,), of each token.
    """
    of_tokens = output.flatten(0, -2), labels.flatten(), weight
    return F.cross_entropy(*of_tokens, label_smoothing=label_smoothing, reduction=reduction)
