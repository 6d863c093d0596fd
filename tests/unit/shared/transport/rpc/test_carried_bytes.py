"""Bytes that are carried between a socket and a stream of messages: all of them, in order, and few at a time."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from shared.transport.rpc.carried_bytes import CARRIED_BYTES, carry_bytes

SENT = os.urandom(5 * CARRIED_BYTES + 17)
PATIENT_SECONDS = 60.0


class Stream:
    """A stream of messages, whose other end a test has."""

    def __init__(self):
        self.coming, self.sent = asyncio.Queue(), asyncio.Queue(1)

    async def receive(self):
        return await self.coming.get()

    async def send(self, data):
        await self.sent.put(data)


@asynccontextmanager
async def sockets(folder):
    """Both ends of a connection."""
    accepted = asyncio.get_running_loop().create_future()
    server = await asyncio.start_unix_server(
        lambda *ends: accepted.set_result(ends), folder / "one.sock", limit=CARRIED_BYTES
    )
    here = await asyncio.open_unix_connection(folder / "one.sock")
    there = await accepted
    yield here, there
    for _, writer in (here, there):
        writer.close()
    server.close()


async def test_all_bytes_pass_both_ways_in_order(tmp_path):
    stream = Stream()
    async with sockets(tmp_path) as ((reader, writer), (far_reader, far_writer)):
        carrying = asyncio.create_task(carry_bytes(reader, writer, stream.receive, stream.send, PATIENT_SECONDS))
        far_writer.write(SENT)
        got = b""
        while len(got) < len(SENT):
            data = await stream.sent.get()
            assert 0 < len(data) <= CARRIED_BYTES
            got += data
        assert got == SENT
        for begin in range(0, len(SENT), CARRIED_BYTES):
            await stream.coming.put(SENT[begin : begin + CARRIED_BYTES])
        assert await far_reader.readexactly(len(SENT)) == SENT
        await stream.coming.put(None)
        await carrying


async def test_what_one_side_does_not_take_stays_with_the_other(tmp_path):
    stream, taken = Stream(), 0
    async with sockets(tmp_path) as ((reader, writer), (_, far_writer)):
        carrying = asyncio.create_task(carry_bytes(reader, writer, stream.receive, stream.send, PATIENT_SECONDS))
        drained = asyncio.create_task(_write_all(far_writer, bytes(64 << 20)))
        while not stream.sent.full():  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not drained.done(), "nobody takes 64 MB"
        while taken < 64 << 20:
            taken += len(await stream.sent.get())
        await drained
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def _write_all(writer, data):
    writer.write(data)
    await writer.drain()


@pytest.mark.parametrize("ends", ["socket", "stream", "neither"])
async def test_it_ends_with_either_side_or_when_nothing_comes(ends, tmp_path):
    stream = Stream()
    async with sockets(tmp_path) as ((reader, writer), (_, far_writer)):
        if ends == "socket":
            far_writer.close()
        if ends == "stream":
            stream.coming.put_nowait(None)
        await carry_bytes(reader, writer, stream.receive, stream.send, 0.05 if ends == "neither" else PATIENT_SECONDS)


async def test_the_error_of_a_message_is_told(tmp_path):
    async def fails():
        raise ValueError("no bytes")

    async with sockets(tmp_path) as ((reader, writer), _):
        with pytest.raises(ValueError, match="no bytes"):
            await carry_bytes(reader, writer, fails, Stream().send, PATIENT_SECONDS)
