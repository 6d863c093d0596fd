"""A trainer process that a whole file of tests speaks with, and that must be as it was after each of them."""

import asyncio
import threading

import pytest

from edge_agent import run_training
from tests.support.commands import MLP
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, trainer_process

THREE_STEPS = [*MLP, "training.max_steps=3"]


@pytest.fixture(scope="module")
def trainer():
    """The address of a trainer that holds one session at most, so that one that is left behind is noticed."""
    with trainer_process("server.max_sessions=1", "compute.threads=1") as (process, address):
        log = threading.Thread(target=process.stderr.read)  # or the trainer would stop at a full pipe
        log.start()
        yield address
        assert process.poll() is None, "the trainer outlived all of this"
        process.terminate()
        log.join()


@pytest.fixture(scope="module")
def expected():
    """The weights after three steps of one process; the file that asks has set one thread."""
    return plain_state(edge_config(*THREE_STEPS))


@pytest.fixture
def serves_the_next(trainer, expected):
    """After the test, the trainer must train as if nothing had happened."""
    yield
    config = edge_config(*THREE_STEPS, f"trainer.address={trainer}")
    assert_same_bits(expected, asyncio.run(run_training(config)).module.state_dict())
