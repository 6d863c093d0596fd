"""Looks at tensors: a few numbers of each, which differ where any of its elements does."""

from collections.abc import Iterable
from functools import cache
from math import isnan

import torch
from torch import Tensor

from shared.model.behaviour import made_up
from shared.model.features import flat_numbers

_PIECE = 65_536
"""Numbers of a tensor that are looked at in one go, so that a large one needs no copy of itself."""
_LOOKS = 3
Look = tuple[float, ...]
"""A few numbers of a tensor: its norm, and its sums with made-up weights."""
NOTHING: Look = (0.0,) * (1 + _LOOKS)
"""The look of a gradient that has not come."""


def look_at(tensor: Tensor) -> Look:
    """Return the look of a tensor, a sparse one too."""
    flat = flat_numbers(tensor.to_dense() if tensor.is_sparse else tensor)
    squares, sums = 0.0, torch.zeros(_LOOKS, dtype=torch.float64)
    for place, piece in enumerate(torch.split(flat, _PIECE)):
        numbers = piece.double().cpu()
        squares += float(numbers.square().sum())
        sums += _weights(place % 7)[:, : len(numbers)] @ numbers
    return squares**0.5, *sums.tolist()


def alike(one: Iterable[float], other: Iterable[float], most: float) -> bool:
    """Tell whether two looks differ by no more than `most` in each number."""
    return all(a == b or abs(a - b) <= most or (isnan(a) and isnan(b)) for a, b in zip(one, other, strict=True))


@cache
def _weights(place: int) -> Tensor:
    return torch.stack([made_up(_PIECE, f"look {index} {place}").double() for index in range(_LOOKS)])
