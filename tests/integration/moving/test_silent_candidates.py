"""A candidate that answers probes and is silent on the opening of a session: what waits for it waits for a bounded time."""

import asyncio

import grpc
import pytest

from cloud_trainer.server import TrainerServer
from edge_agent.adaptation.candidates.probed import measured_factor
from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import RefusedError, UnreachableError
from tests.support.peers.trainers import FLAGS, trainer_with
from tests.support.running import Listening, edge_config, hand_over, running_trainer, trainer_config

pytestmark = pytest.mark.usefixtures("one_thread")


async def silent(_request, _context):
    await asyncio.Event().wait()


@pytest.fixture
async def silent_address():
    handler = grpc.unary_unary_rpc_method_handler(silent)
    async with trainer_with("OpenSession", handler, TrainerServer(trainer_config())) as address:
        yield address


async def test_a_handover_to_it_is_refused_and_the_run_goes_on(silent_address, monkeypatch):
    monkeypatch.setattr("edge_agent.sessions.membership.LEAST_OPENING_SECONDS", 0.1)
    asked = asyncio.get_running_loop().create_future()

    def begin(deployer):
        hand_over(deployer, "silent")
        asked.set_result(asyncio.create_task(deployer.in_force()))

    async with running_trainer() as server, asyncio.timeout(200):
        several = (
            f'trainers=[{{name="here", address="{server.address}"}}, {{name="silent", address="{silent_address}"}}]'
        )
        flags = [*FLAGS[:-1], several, "training.max_steps=1000000", "training.epochs=1000000"]
        running = asyncio.create_task(run_training(edge_config(*flags), Listening(session_opened=begin)))
        with pytest.raises(RefusedError, match=r"'silent' has not opened the session within \d"):
            await (await asked)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})


async def test_the_time_of_blocks_is_not_measured_there(silent_address):
    experiment = Experiment(edge_config(*FLAGS[:-1]))
    async with TrainerClient(TrainerAddressConfig(address=silent_address), LinkConfig()) as client:
        with pytest.raises(UnreachableError, match=r"'silent' has not opened a session within 0\.1 s"):
            await measured_factor(experiment, client, "silent", 1, None, 0.1)
