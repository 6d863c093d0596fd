"""A failed call is an event."""

import socket

import grpc
import pytest

from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import UnreachableError
from shared.events import Events
from shared.events.calls import CallFailed


async def test_a_failed_call_is_an_event_with_its_status():
    failed, events = [], Events()
    events.subscribe(CallFailed, failed.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # free once the socket is closed
    client = TrainerClient(TrainerAddressConfig(address=f"127.0.0.1:{port}"), LinkConfig(), events.emit)
    with pytest.raises(UnreachableError):
        await client.get_session("any")
    assert failed == [CallFailed(grpc.StatusCode.UNAVAILABLE)]
    await client.__aexit__()
