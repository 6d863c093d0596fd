"""A trainer whose GPU has failed for good says so, ends for its supervisor to start another, and lets the others go on there.

Without a GPU, what finds out whether one can still compute is made to say that it cannot, once a model has failed.
"""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_trainer.server import serve
from isthmus import run_training
from shared.errors import DeviceError, ExitCode, IsthmusError
from shared.execution import failures
from tests.support.commands import MLP
from tests.support.peers.strangers import path_of
from tests.support.running import edge_config, heard_trainer_process, held_port, trainer_config
from tests.support.wire import RawPeer, opening

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode
FAILING = [
    *MLP,
    'model.factory="tests.support.models.failing:failing"',
    'model.kwargs={block=2, when="backward"}',
]
KERNEL = 'model.kwargs={block=2, when="kernel"}'


@asynccontextmanager
async def serving():
    """A trainer as its command runs it: its address, and what it ends with."""
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        trainer = asyncio.create_task(serve(trainer_config(f"server.listen={address}")))
        yield address, trainer
        if not trainer.done():
            trainer.cancel()
            await asyncio.wait({trainer})


@pytest.fixture
def device_fails(monkeypatch):
    monkeypatch.setattr(failures, "device_failure", lambda _device: "CUDA error: device-side assert triggered")


@pytest.mark.slow
@pytest.mark.usefixtures("device_fails")
async def test_a_trainer_whose_device_has_failed_ends_with_its_own_exit_code_and_tells_who_made_it_fail():
    async with (
        serving() as (address, trainer),
        RawPeer(address) as culprit,
        grpc.aio.insecure_channel(address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        other = channel.stream_stream(path_of("Link"))()
        await other.write(opening(await culprit.open_and_join()))
        for _ in ("opened", "position"):
            assert await other.read() is not grpc.aio.EOF
        with pytest.raises(IsthmusError, match="step 0 at 'trainer' failed, and the trainer's cpu with it") as told:
            # The trainer is not started again here, so an agent that brought the step to the next one would wait without end.
            async with asyncio.timeout(60):
                await run_training(edge_config(*FAILING, f"trainer.address={address}"))
        assert told.value.exit_code is ExitCode.REFUSED, "which systemd does not restart"
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await other.code() in (Code.UNAVAILABLE, Code.CANCELLED), "its edge waits for the next trainer"
        with pytest.raises(DeviceError, match="with it") as failed:
            await trainer
        assert failed.value.exit_code is ExitCode.DEVICE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
async def test_an_index_out_of_range_on_a_gpu_ends_its_trainer_with_the_exit_code_of_a_device():
    with heard_trainer_process("compute.device=cuda", begun_by_python=True) as (trainer, address, _):
        with pytest.raises(IsthmusError, match=r"the trainer's cuda:0 with it: .*device-side assert") as told:
            async with asyncio.timeout(120):
                await run_training(edge_config(*FAILING, KERNEL, f"trainer.address={address}"))
        assert told.value.exit_code is ExitCode.REFUSED, "which systemd does not restart"
        assert trainer.wait(60) == ExitCode.DEVICE


async def test_a_model_that_fails_by_itself_ends_its_own_session_alone():
    async with serving() as (address, trainer), RawPeer(address) as peer:
        with pytest.raises(IsthmusError, match="the backward is not written yet"):
            await run_training(edge_config(*FAILING, f"trainer.address={address}"))
        await peer.open()
        assert not trainer.done()
