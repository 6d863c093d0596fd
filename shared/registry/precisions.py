"""Precisions of computing by name; `shared.training.precision` computes in them."""

from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]
"""fp32: that of the weights. bf16, fp16: bfloat16 or float16 in the operations that torch's autocast chooses; the weights stay
as they are. With fp16 the loss is scaled, so that small gradients do not vanish."""
