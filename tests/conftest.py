"""Fixtures that all tests may use."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.support import forked
from tests.support.examples import MOST

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

# An example's deadline would be a test of what else this machine has to do. The examples are the same every time, so that
# a commit that passed passes again; `pytest --hypothesis-profile=random` draws others, and `make fuzz` and `make chaos` many.
hypothesis.settings.register_profile("random", deadline=None, max_examples=MOST)
hypothesis.settings.register_profile("many", deadline=None, max_examples=MOST, derandomize=True)
hypothesis.settings.register_profile("few", deadline=None, max_examples=MOST // 5, derandomize=True)
hypothesis.settings.load_profile("few")


def pytest_configure() -> None:
    """Be ready to fork our programs, while this process has talked to nobody."""
    forked.prepare(ROOT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-slow` all cases but the first of each test that is marked `first_case`."""
    seen = set[object]()
    for item in items:
        if item.get_closest_marker("first_case") is None or any(map(item.get_closest_marker, ("slow", "full"))):
            continue
        test = getattr(item, "function", None)
        if test in seen:
            item.add_marker("slow")
        seen.add(test)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and traces that lies beside a developer's checkout; a user's clone has none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not beside this checkout ({SHARED_DATA} does not exist)")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def _state_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the state of agents and trainers, in this process and in those that it starts, apart from the developer's.

    Nor are they controlled from anywhere, unless a test says so.
    """
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["EDGE_AGENT_CONTROL__LISTEN"] = os.environ["CLOUD_TRAINER_CONTROL__LISTEN"] = "none"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes on one thread, as the processes do that results are compared with, bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
