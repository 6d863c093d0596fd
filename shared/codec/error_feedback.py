"""Error feedback: the edge corrects an error gradient that was taken at the compressed feature.

Pure functions over tensors. The caller keeps the error of each batch.
"""

import math
from enum import StrEnum

import torch
from torch import Tensor


class FeedbackMode(StrEnum):
    """The scale of the second-order term."""

    BATCH = "batch"
    """Times the batch size: right for a loss that is a mean over the batch, and the default."""
    LITERAL = "literal"
    """As the paper prints it, right for the loss of one sample; with a mean over a batch it all but vanishes."""
    OFF = "off"
    """None: the gradient as it came."""


def compression_error(decoded: Tensor, original: Tensor) -> Tensor:
    """E = C(h) - h of paper 000, Alg. 1, line 2, in memory of its own: `decoded` may lie in the payload that is sent.

    decoded: what the decoder makes of the encoded `original`. Where `original` is infinite the error is zero: a codec may
    send such an element as a finite one, and no gradient can be corrected by an infinite distance.
    """
    original = original.detach()
    error = decoded - original
    if not math.isfinite(error.sum().item()):
        error.masked_fill_(original.isinf(), 0.0)
    return error


def compensate(gradient: Tensor, error: Tensor, batch_size: int, mode: FeedbackMode = FeedbackMode.BATCH) -> Tensor:
    """Estimate of the error gradient at the feature before compression.

    gradient: error gradient of the mean loss at the compressed feature, any shape.
    error: compressed minus true feature, of the same shape.
    batch_size: number of samples B over which the loss is a mean.
    Second-order Taylor term, with the diagonal of the Hessian estimated by the squared gradient (paper 000, Eq. 7 and
    8, Alg. 1, line 5). A mean over B samples makes a sample's gradient B times smaller, its square B^2 times and its
    Hessian B times, which the factor makes good. `gradient` is not written to; with mode OFF it is what comes back.
    """
    if mode is FeedbackMode.OFF:
        return gradient
    factor = batch_size if mode is FeedbackMode.BATCH else 1
    return torch.addcmul(gradient, error * gradient, gradient, value=-factor)
