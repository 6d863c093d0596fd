"""Combinations of several parameters of a test, and seeds: `make test` runs few of them and `make test-slow` all."""

from collections.abc import Collection
from itertools import product
from typing import Any

import pytest

QUICK_SEEDS = 3


def crossed(*axes: Collection[Any]) -> list[Any]:
    """Return every combination of the axes' values. A combination is slow unless it differs from the first in one value."""
    first = [next(iter(axis)) for axis in axes]

    def is_slow(values: tuple[Any, ...]) -> bool:
        return sum(value != usual for value, usual in zip(values, first, strict=True)) > 1

    return [pytest.param(*values, marks=pytest.mark.slow if is_slow(values) else []) for values in product(*axes)]


def seeds(count: int) -> list[Any]:
    """Return the seeds 0 to count - 1. All but the first three are slow."""
    return [pytest.param(seed, marks=pytest.mark.slow if seed >= QUICK_SEEDS else []) for seed in range(count)]
