"""Probes over a real socket: the answer to an agent that may open a session there."""

import pytest

from edge_agent.adaptation.candidates.probed import measured_factor, measured_rates
from edge_agent.experiment.experiment import Experiment
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import PLAIN
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from tests.support.experiments import flags, profile_of
from tests.support.running import edge_config, running_trainer
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


async def test_the_time_of_blocks_is_measured_without_weights_or_samples_and_nothing_stays():
    config = edge_config(*flags("mlp", "sgd"), "model.kwargs={depth=4, hidden=512}")
    experiment = Experiment(config)
    weights = sum(each.numel() * each.element_size() for each in experiment.chain.module.parameters())
    async with (
        running_trainer() as server,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        factor, carried = await measured_factor(experiment, client, "trainer", 2, profile_of(config).workers[1])
        assert factor > 0.0
        assert carried < 16_384 < weights / 20
        assert (await client.probe(FACTORY)).sessions == 0


async def test_rates_take_no_more_bytes_than_they_may():
    async with running_trainer() as server:
        config = edge_config(f"trainer.address={server.address}")
        found, carried = await measured_rates(config, config.only_trainer, PLAIN, 200_000)
        assert found.uplink is not None
        assert found.downlink is not None
        assert 100_000 < carried < 1.2 * 200_000
        assert await measured_rates(config, config.only_trainer, PLAIN, 1000) == (type(found)(), 0)
