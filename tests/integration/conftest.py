"""Fixtures of tests with real sockets: a trainer process that a whole file speaks with, and that is whole after
each."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from edge_agent.observability.metrics import EdgeMetrics
from isthmus import run_training
from tests.support.commands import MLP
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, trainer_process

THREE_STEPS = [*MLP, "training.max_steps=3"]


@pytest.fixture(scope="module")
def trainer():
    """The address of a trainer that holds one session at most, so that one that is left behind is noticed."""
    with trainer_process("server.max_sessions=1", "compute.threads=1") as (process, address):
        yield address
        assert process.poll() is None, "the trainer outlived all of this"


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    """The weights after three steps of one process."""
    return plain_state(edge_config(*THREE_STEPS))


@pytest.fixture
def serves_the_next(trainer, expected):
    """After the test, the trainer must train as if nothing had happened."""
    yield
    config = edge_config(*THREE_STEPS, f"trainer.address={trainer}")
    assert_same_bits(expected, asyncio.run(run_training(config)).module.state_dict())


@pytest.fixture
def edge_metrics(monkeypatch):
    """The metrics of the runs of a test, oldest first."""
    made = []
    init = EdgeMetrics.__init__

    def append(self, *arguments):
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(EdgeMetrics, "__init__", append)
    return made


def pytest_collection_finish() -> None:
    """Leave out what was imported and collected where garbage is collected, which is after each test."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_channels_left() -> Iterator[None]:
    """gRPC's asyncio has one poller a process, bound to the event loop that was there first: what a test has left in
    reference cycles must be gone before the next test's loop talks."""
    yield
    gc.collect()
