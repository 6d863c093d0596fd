"""Fixtures that all tests may use."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and traces that lies beside a developer's checkout; a user's clone has none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not beside this checkout ({SHARED_DATA} does not exist)")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def _no_channels_left() -> Iterator[None]:
    """gRPC's asyncio has one poller a process, bound to the event loop that was there first: what a test has left in
    reference cycles must be gone before the next test's loop talks."""
    yield
    gc.collect()
