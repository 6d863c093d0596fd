"""Counting gRPC messages: in bytes split anywhere, and between two processes that know nothing of the counter."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.message_count import PREFACE, CountingRelay, MessageCount
from tests.conftest import ROOT

DATA, HEADERS = 0, 1


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def message(size: int) -> bytes:
    return bytes([0]) + size.to_bytes(4, "big") + bytes([1]) * size


@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    frame_bytes=st.integers(1, 30),
    read_bytes=st.integers(1, 50),
)
def test_messages_are_counted_however_frames_and_reads_cut_them(sizes, frame_bytes, read_bytes):
    streams = {1: b"".join(map(message, sizes)), 3: b"".join(map(message, reversed(sizes)))}
    parts = [frame(HEADERS, 1, b"not counted at all")]
    for start in range(0, len(streams[1]), frame_bytes):  # two streams alternate
        parts += [frame(DATA, stream, data[start : start + frame_bytes]) for stream, data in streams.items()]
    passed = PREFACE + b"".join(parts)
    count = MessageCount(len(PREFACE))
    for start in range(0, len(passed), read_bytes):
        count.add(memoryview(passed)[start : start + read_bytes])
    assert count.messages == 2 * len(sizes)


@pytest.mark.parametrize("messages", [1, 8])
def test_a_relay_counts_what_two_processes_send_each_other(messages):
    stream = [sys.executable, "-m", "benchmarks.support.bare_stream"]
    server = subprocess.Popen([*stream, "serve", "asyncio"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        with CountingRelay(f"127.0.0.1:{server.stdout.readline().strip()}") as relay:
            port = relay.address.rpartition(":")[2]
            subprocess.run([*stream, "ask", "asyncio", port, "300000", str(messages), "5"], cwd=ROOT, check=True)
    finally:
        server.terminate()
        server.communicate()
    assert relay.messages == (5 * messages, 5 * messages)
