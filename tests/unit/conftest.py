"""Fixtures of all unit tests."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """A test that sets up logs does not decide where those of the next test go."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
