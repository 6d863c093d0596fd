"""Leaves the tests of benchmarks to `make test-slow`: they hold what measures the product, not the product."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test of this folder."""
    item.add_marker(pytest.mark.slow)
