"""Precisions of computing by name; `shared.training.precision` computes in them."""

from typing import Literal

Precision = Literal["fp32", "bf16"]
"""fp32: that of the weights. bf16: bfloat16 in the operations that torch's autocast chooses; the weights stay as they are."""
