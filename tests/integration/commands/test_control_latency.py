"""On a slow link that training fills, control calls still answer, and both sides know what the link carries.

The link is the user-space relay's; what is claimed of it is claimed of time, with room for a busy machine.
"""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

import pytest

from benchmarks.net.relay import Relay
from edge_agent.training.statistics import Statistics
from isthmus import run_training
from shared.client.trainer import TrainerClient
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

BITS_PER_SECOND, ONE_WAY_SECONDS = 20e6, 0.020
CALLS, CALL_SECONDS = 10, 0.250
SERVER_FLAGS = ['models.allowed=["benchmarks.networks"]', "server.accept_inputs=true"]
FLAGS = [
    'model.factory="benchmarks.networks:timed_halves"',  # blocks that cost nothing, so that the link is the bottleneck
    'model.kwargs={compute="sleep", edge=[0, 0], cloud=[0, 0], feature_floats=4000}',
    'data.train={factory="benchmarks.networks:RandomImages", kwargs={size=1, samples=6400}}',
    "data.batch_size=32",  # a feature of half a megabyte, which is a fifth of a second
    "deployment.cut=1",
    'privacy.inputs_to=["trainer"]',  # a feature that costs nothing is the image itself
    "deployment.staleness=2",
    "training.epochs=1",
    "training.evaluate_every_epochs=0",
]


@pytest.mark.slow
async def test_control_calls_answer_and_both_rates_are_known_while_the_link_is_full():
    rates: list[tuple[float | None, float | None]] = []
    stepped = asyncio.Event()

    def on_progress(progress: Statistics) -> None:
        rates.append((progress.uplink_bits_per_second, progress.downlink_bits_per_second))
        if len(rates) == 3:
            stepped.set()

    async with running_trainer(*SERVER_FLAGS) as server, AsyncExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        relay = Relay(
            host,
            int(port),
            uplink_bits_per_second=BITS_PER_SECOND,
            downlink_bits_per_second=BITS_PER_SECOND,
            one_way_delay_seconds=ONE_WAY_SECONDS,
        )
        async with relay:
            config = edge_config(*FLAGS, f"trainer.address={relay.address}")
            client = await stack.enter_async_context(TrainerClient(config.trainer, config.link))
            training = asyncio.create_task(run_training(config, Listening(on_progress)))
            training.add_done_callback(lambda _: stepped.set())
            await stepped.wait()
            assert not training.done(), training.exception()
            session = server.service.sessions.built[0].id
            latencies = []
            began, forwarded = time.monotonic(), relay.uplink.forwarded_bytes
            for _ in range(CALLS):
                await asyncio.sleep(0.15)
                called = time.monotonic()
                await client.get_session(session)
                latencies.append(time.monotonic() - called)
            full = (relay.uplink.forwarded_bytes - forwarded) * 8 / (time.monotonic() - began) / BITS_PER_SECOND
            training.cancel()
            await asyncio.gather(training, return_exceptions=True)
    assert full > 0.85, "the claim is about a link that is full"
    # The relay has a queue for each connection; test_duplex.py has a link with one queue for all.
    assert statistics.median(latencies) < CALL_SECONDS
    for direction, measured in zip(("up", "down"), zip(*rates, strict=True), strict=True):
        known = [rate for rate in measured if rate is not None]
        assert len(known) >= len(rates) - 2, f"{direction}: a tensor of eight chunks or more measures the link"
        assert statistics.median(known) == pytest.approx(BITS_PER_SECOND, rel=0.1)
        assert known[0] == pytest.approx(BITS_PER_SECOND, rel=0.1)
