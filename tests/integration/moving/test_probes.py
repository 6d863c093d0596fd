"""Probes over a real socket: the answer to an agent that may open a session there."""

import pytest

from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from tests.support.running import running_trainer
from tests.support.wire import open_request

pytestmark = pytest.mark.usefixtures("one_thread")
FACTORY = "shared.model.zoo:mlp"


async def test_a_probe_tells_what_a_new_session_would_find_and_changes_nothing():
    limits = "server.max_sessions=3", "server.max_sessions_per_subject=2", "server.max_session_bytes=123_000_000"
    async with (
        running_trainer(*limits) as server,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        found = await client.probe(FACTORY)
        assert (found.sessions, found.free_sessions, found.session_bytes) == (0, 2, 123_000_000)
        assert found.model_allowed
        assert not found.stopping
        assert 0.0 <= found.busy <= 1.0
        await client.open_session(open_request())
        found = await client.probe("os:system")
        assert (found.sessions, found.free_sessions, found.model_allowed) == (1, 1, False)


@pytest.mark.parametrize("factory", ["", "no name", "shared.model.zoo:_hidden", "a" * 300])
async def test_a_factory_that_cannot_be_is_not_allowed(factory):
    async with (
        running_trainer() as server,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        assert not (await client.probe(factory)).model_allowed
