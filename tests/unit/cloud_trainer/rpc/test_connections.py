"""Failed connections, recognised in gRPC's log: the order of a handshake and a first call does not matter."""

import asyncio
import sys

import pytest
from prometheus_client import CollectorRegistry

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc import connections
from cloud_trainer.rpc.connections import Connections
from shared.telemetry.raw_lines import RawLines

BEGIN = "I1123 18:55:10.292129   18298 handshaker.cc:155] CallNextHandshakerLocked: error="
PEER = "ipv4:203.0.113.7:4242"
ARGS = (
    f"shutdown=false index=2, args={{grpc.internal.endpoint_peer_address={PEER}, grpc.internal.server_credentials=0x1}}"
)
SHAKEN = f"{BEGIN}OK {ARGS.replace('args={', 'args={grpc.auth_context=0x2, ')}"
FAILED = f"{BEGIN}UNAVAILABLE: Handshake read failed (Socket closed)\n=== Source Location Trace: ===\nx.cc:1\n {ARGS}"


@pytest.fixture
async def heard(monkeypatch):
    monkeypatch.setattr(connections, "FIRST_CALL_SECONDS", 0.0)
    metrics, lines = TrainerMetrics(CollectorRegistry()), RawLines(sys.stderr)
    watched = Connections(metrics)
    watched.follow(lines)

    async def count(*told):
        for tell in told:
            tell()
            await asyncio.sleep(0)  # work that was scheduled is done
        for _ in range(3):
            await asyncio.sleep(0.001)
        return metrics.registry.get_sample_value("isthmus_failed_handshakes_total")

    yield count, lambda entry: lambda: lines.take(entry), watched.called
    watched.close()


async def test_a_handshake_that_fails_is_counted(heard):
    count, entry, _ = heard
    assert await count(entry(FAILED)) == 1


async def test_a_client_that_makes_no_call_is_counted(heard):
    count, entry, _ = heard
    assert await count(entry(SHAKEN)) == 1


async def test_a_client_that_calls_is_not_counted_even_if_its_handshake_is_logged_later(heard):
    count, entry, called = heard
    assert await count(lambda: called(PEER), entry(SHAKEN)) == 0


async def test_handshakes_of_our_own_dialling_are_not(heard):
    count, entry, _ = heard
    assert await count(entry(FAILED.replace("server_credentials", "channel_credentials"))) == 0


async def test_a_line_that_is_of_no_handshake_is_left_to_the_log():
    watched, lines = Connections(TrainerMetrics(CollectorRegistry())), RawLines(sys.stderr)
    watched.follow(lines)
    assert not lines.hear("E1123 18:55:10.292129   18298 server.cc:1] handshaker.cc:155] error=")
    assert lines.hear(FAILED)
