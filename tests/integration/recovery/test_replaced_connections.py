"""A connection to a trainer that is replaced by another: what is on it is lost, and what waits on it hears of that."""

import asyncio

import pytest

from shared.client.config import TrainerAddressConfig
from shared.client.connection import TrainerConnection
from shared.client.credentials import PLAIN
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import UnreachableError
from shared.events import ignore
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from tests.support.running import running_trainer
from tests.support.wire import RawPeer, linked

pytestmark = pytest.mark.usefixtures("one_thread")


async def test_a_link_on_a_replaced_connection_is_lost_once_another_link_is_dialled():
    """A reader that is cancelled in place of that ends without a word, and its run hangs."""
    async with (
        running_trainer() as server,
        RawPeer(server.address) as peer,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        idle, read = await linked(client, await peer.open()), await linked(client, await peer.open())
        reading = asyncio.create_task(read.stream.receive())
        await asyncio.sleep(0)
        await client.go_through(None, "run")
        other = await linked(client, await peer.open())
        with pytest.raises(UnreachableError, match="was closed"):
            await reading
        with pytest.raises(UnreachableError, match="dropped the call"):
            await idle.stream.write(LinkMessage())
        await other.end_writing()


@pytest.mark.parametrize("by", ["its task", "a timeout", "the link"])
async def test_a_reader_that_this_worker_cancels_is_cancelled(by):
    async with (
        running_trainer() as server,
        RawPeer(server.address) as peer,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        call = await linked(client, await peer.open())
        if by == "a timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await call.stream.receive()
            return
        reading = asyncio.create_task(call.stream.receive())
        await asyncio.sleep(0)
        (reading if by == "its task" else call).cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize("by_caller", [False, True])
async def test_a_call_that_its_connection_has_cancelled_is_lost_and_one_that_its_caller_has_is_cancelled(by_caller):
    connection = TrainerConnection(TrainerAddressConfig(address="127.0.0.1:1"), LinkConfig(), ignore, PLAIN)
    answer = asyncio.get_running_loop().create_future()
    calling = asyncio.create_task(connection.await_answer(answer))
    await asyncio.sleep(0)
    (calling if by_caller else answer).cancel()
    with pytest.raises(asyncio.CancelledError if by_caller else UnreachableError):
        await calling
    await connection.close()
