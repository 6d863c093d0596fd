"""All combinations of several parameters of a test, of which `make test` runs few and `make test-slow` all."""

from collections.abc import Collection
from itertools import product
from typing import Any

import pytest


def crossed(*axes: Collection[Any]) -> list[Any]:
    """Return every combination of the axes' values. A combination is slow unless it differs from the first in one value."""
    first = [next(iter(axis)) for axis in axes]

    def is_slow(values: tuple[Any, ...]) -> bool:
        return sum(value != usual for value, usual in zip(values, first, strict=True)) > 1

    return [pytest.param(*values, marks=pytest.mark.slow if is_slow(values) else []) for values in product(*axes)]
