"""Places: the newest caller gets one, whatever the oldest does with its own."""

import asyncio

import pytest

from shared.transport.auth.places import Places
from shared.transport.rpc.status import StatusError


async def test_the_newest_gets_a_place_while_the_oldest_is_only_just_ending():
    places, ending, go_on = Places(1, 0.01), asyncio.Event(), asyncio.Event()

    async def ends_slowly():
        async with places.place():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ending.set()
                await go_on.wait()
                raise

    oldest = asyncio.create_task(ends_slowly())
    await ending.wait()
    async with places.place():
        go_on.set()
    with pytest.raises(StatusError, match="no message in time"):
        await oldest
