"""The random numbers of stochastic rounding, from a generator of each thread's own."""

import threading
from typing import cast

import torch
from torch import Tensor

from shared.codec.buffers import scratch

_random = threading.local()


def seed_stochastic_rounding(seed: int) -> None:
    """Let the calling thread's stochastic rounding follow from `seed`; otherwise it differs from run to run."""
    _generator().manual_seed(seed)


def add_noise(levels: Tensor, bits: int) -> None:
    """Add random numbers, uniform in (-1/2, 1/2), so that rounding then goes up as often as the fraction says.

    They are odd multiples of a step that float32 still resolves at the highest level, so that a value on a level is not
    moved off it. Several come from one draw of the generator, which is by far the slowest part.
    """
    small, ones = (torch.int16, 0x0001_0001_0001_0001) if bits <= 8 else (torch.int8, 0x0101_0101_0101_0101)
    draws = scratch.take("draws", -(-levels.numel() * small.itemsize // 8), torch.int64)
    draws.random_(-(2**63), None, generator=_generator()).bitwise_or_(ones)
    noise = scratch.take("noise", levels.numel(), torch.float32).copy_(draws.view(small)[: levels.numel()])
    levels.add_(noise.view(levels.shape), alpha=2.0 ** (-8 * small.itemsize))


def _generator() -> torch.Generator:
    """This thread's own: torch's default one is seeded for a block's dropout while the codec's thread draws."""
    if not hasattr(_random, "generator"):
        _random.generator = torch.Generator()
        _random.generator.seed()
    return cast("torch.Generator", _random.generator)
