"""Combinations of several parameters of a test: few for `make test`, some for `make test-slow`, the rest for `make test-full`.

CI runs the first two.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

QUICK_SEEDS = 2
SLOW_EVERY = 15
"""One of so many cases that are not quick is slow; dice say which, always the same. The others are left to `make test-full`."""


def crossed(*axes: Collection[Any]) -> list[Any]:
    """Return every combination of the axes' values. One that differs from the first in at most one value is quick."""
    first = [next(iter(axis)) for axis in axes]

    def is_quick(values: tuple[Any, ...]) -> bool:
        return sum(value != usual for value, usual in zip(values, first, strict=True)) <= 1

    return thinned(product(*axes), is_quick)


def seeds(count: int) -> list[Any]:
    """Return the seeds 0 to count - 1. The first two are quick."""
    return thinned(zip(range(count)), lambda values: values[0] < QUICK_SEEDS)


def thinned(cases: Iterable[Sequence[Any]], is_quick: Callable[[tuple[Any, ...]], bool] = lambda _: False) -> list[Any]:
    """Return all cases, values each, in their order, with the mark of those that are not quick."""
    told = [tuple(case) for case in cases]
    rest = [number for number, case in enumerate(told) if not is_quick(case)]
    random.Random(0).shuffle(rest)
    slow, full = set(rest[::SLOW_EVERY]), set(rest)

    def marks(number: int) -> Any:
        return pytest.mark.slow if number in slow else pytest.mark.full if number in full else []

    return [pytest.param(*case, marks=marks(number)) for number, case in enumerate(told)]
