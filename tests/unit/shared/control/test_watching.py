"""Watching a status: as often as is allowed, and once more at the end."""

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from shared.control.answers import watch
from shared.transport.rpc.status import StatusError


@pytest.mark.parametrize(("seconds", "fits"), [(0.04, False), (0.05, True), (3600, True), (3601, False), (-1, False)])
async def test_a_status_can_be_watched_so_often_and_no_oftener(seconds, fits):
    interval, ended = Duration(), asyncio.Event()
    interval.FromNanoseconds(int(seconds * 1e9))
    seen = watch(interval, lambda: 1, ended)
    if not fits:
        with pytest.raises(StatusError, match=r"it must be from 0\.05 to 3600 s"):
            await anext(seen)
        return
    assert await anext(seen) == 1
    ended.set()
    assert [status async for status in seen] == [1], "a last one says how it ended"
