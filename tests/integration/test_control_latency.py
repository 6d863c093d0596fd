"""On a slow link that training fills, control calls still answer, and both sides know what the link carries.

The link is the user-space relay's; what is claimed of it is claimed of time, with room for a busy machine.
"""

import asyncio
import statistics
import time

import pytest
import torch

from benchmarks.net.relay import Relay
from edge_agent import run_training
from edge_agent.client import Stream, TrainerClient
from edge_agent.observer import Progress, RunObserver
from shared.config import LinkConfig
from tests.support.running import edge_config, running_trainer

BITS_PER_SECOND, ONE_WAY_SECONDS = 20e6, 0.020
CALLS = 10
FLAGS = [
    "model.kwargs={width=32, blocks=1}",  # a feature of half a megabyte, which is a fifth of a second
    "data.batch_size=64",
    "deployment.cut=1",
    "deployment.staleness=2",
    "training.evaluate_every_epochs=0",
]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def test_control_calls_answer_and_both_rates_are_known_while_the_link_is_full(monkeypatch):
    rates: list[tuple[float | None, float | None]] = []
    streams: list[Stream] = []
    watch, stepped = RunObserver.watch, asyncio.Event()

    def on_progress(progress: Progress) -> None:
        rates.append((progress.uplink_bits_per_second, progress.downlink_bits_per_second))
        if len(rates) == 3:
            stepped.set()

    monkeypatch.setattr(RunObserver, "watch", lambda self, stream: (streams.append(stream), watch(self, stream)))
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        relay = Relay(
            host,
            int(port),
            uplink_bits_per_second=BITS_PER_SECOND,
            downlink_bits_per_second=BITS_PER_SECOND,
            one_way_delay_seconds=ONE_WAY_SECONDS,
        )
        async with relay, TrainerClient(relay.address, LinkConfig(), 20.0) as client:
            config = edge_config(*FLAGS, f"trainer.address={relay.address}")
            training = asyncio.create_task(run_training(config, on_progress))
            training.add_done_callback(lambda _: stepped.set())
            await stepped.wait()
            assert not training.done(), training.exception()
            (session,) = server.service._sessions._open
            latencies, queued_seconds = [], []
            began, forwarded = time.monotonic(), relay.uplink.forwarded_bytes
            for _ in range(CALLS):
                await asyncio.sleep(0.15)
                called = time.monotonic()
                await client.get_session(session)
                latencies.append(time.monotonic() - called)
                queued_seconds.append(streams[0]._credits.under_way_bytes * 8 / BITS_PER_SECOND)
            full = (relay.uplink.forwarded_bytes - forwarded) * 8 / (time.monotonic() - began) / BITS_PER_SECOND
            training.cancel()
            await asyncio.gather(training, return_exceptions=True)
    assert full > 0.9, "the claim is about a link that is full"
    assert statistics.median(latencies) < 0.25
    # The relay has a queue for each connection; on a link with one for all, a call waits for all that is under way.
    assert statistics.median(queued_seconds) < 0.25
    for direction, measured in zip(("up", "down"), zip(*rates, strict=True), strict=True):
        known = [rate for rate in measured if rate is not None]
        assert len(known) >= len(rates) - 2, f"{direction}: a tensor of eight chunks or more measures the link"
        assert statistics.median(known) == pytest.approx(BITS_PER_SECOND, rel=0.1)
        assert known[0] == pytest.approx(BITS_PER_SECOND, rel=0.1)
