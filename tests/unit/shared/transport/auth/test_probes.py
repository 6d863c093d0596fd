"""Places for probes: the newest gets one, whatever the oldest does with its own."""

import asyncio

import pytest

from shared.transport.auth import probes
from shared.transport.auth.probes import Probes
from shared.transport.rpc.status import StatusError


async def test_a_probe_gets_a_place_while_the_oldest_is_only_just_ending(monkeypatch):
    monkeypatch.setattr(probes, "MOST_PROBES", 1)
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.01)
    places, ending, go_on = Probes(), asyncio.Event(), asyncio.Event()

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
