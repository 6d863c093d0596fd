"""The precision in which a forward and a loss compute: that of the weights, or a shorter one where torch finds it safe."""

from contextlib import AbstractContextManager, nullcontext

import torch

from shared.registry import Precision

_HOST = torch.device("cpu")


def computing(precision: Precision, device: torch.device = _HOST) -> AbstractContextManager[object]:
    """Have this thread compute in a precision while the body runs. A backward belongs outside: it follows its forward."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)
