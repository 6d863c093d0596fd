"""Trainers that answer one call as a test says, and everything else as a real one does."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from cloud_trainer.rpc.methods import handlers
from cloud_trainer.server import STOP_GRACE_SECONDS, TrainerServer
from isthmus import run_training
from shared.errors import ProtocolError
from shared.transport.stream.packets import Packet, deserializer, serialize
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkOpened, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from tests.support.running import edge_config, trainer_config

BATCH = 32
FEATURE = [BATCH, 64]
FACTORY = '"tests.support.samples:FlatDigits"'
FLAGS = [
    'model.factory="shared.model.zoo:mlp"',
    f"data.train={{factory={FACTORY}}}",
    "deployment.cut=1",
    "training.max_steps=3",
    "trainer.connect_timeout_seconds=30",
]


class Overridden(grpc.GenericRpcHandler):
    """The real service, but for one method that answers with the bytes it is told to."""

    def __init__(self, real, method, handler):
        self._real, self._method, self._handler = real, method, handler

    def service(self, details):
        return self._handler if details.method.endswith(f"/{self._method}") else self._real.service(details)


@asynccontextmanager
async def trainer_with(method, handler, real=None):
    """The address of a trainer whose `method` is another."""
    real = real or TrainerServer(trainer_config())
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (Overridden(handlers(real.service, real.metrics, real.device_watch), method, handler),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        assert await real.service.close(STOP_GRACE_SECONDS), "nothing computes any more"


def linking(*answers, after_steps=0, then_reads=0):
    """A link that answers opening and position, waits for so many batches, says all of this, reads on, and ends."""

    async def link(_requests, context):
        assert (await context.read()).message.HasField("opening")
        await context.write(answers[0])
        await context.read()  # where the agent stands
        for answer in answers[1:2]:
            await context.write(answer)
        features = 0
        while features < after_steps:
            (frame, *_) = (await context.read()).message.frames
            features += frame.role == Role.ROLE_FEATURE and frame.offset == 0
        for answer in answers[2:]:
            await context.write(answer)
        for _ in range(then_reads):
            await context.read()

    return grpc.stream_stream_rpc_method_handler(link, request_deserializer=deserializer(LinkMessage))


async def agents_end(method, handler, *flags):
    """The sentence that the agent ends with, under these flags."""
    async with trainer_with(method, handler) as address, asyncio.timeout(200):
        with pytest.raises(ProtocolError) as ended:
            await run_training(edge_config(*FLAGS, f"trainer.address={address}", *flags))
    assert "\n" not in str(ended.value)
    return str(ended.value)


def message(payload=b"", **fields):
    return serialize(Packet(LinkMessage(**fields), payload))


def position(version=0, next_step=0, roles=(Role.ROLE_FEATURE, Role.ROLE_LABEL), dones=0):
    awaited = [Awaited(role=role, block=1 if role == Role.ROLE_FEATURE else 3, next_step=next_step) for role in roles]
    return message(position=LinkPosition(placement_version=version, awaited=awaited, dones_received=dones))


OPENED = message(opened=LinkOpened())
LINKED = OPENED, position()
"""First messages of a right trainer on a link."""


def gradient(payload=bytes(8192), step=0, role=Role.ROLE_ERROR_GRADIENT, version=0, offset=0, samples=BATCH, **header):
    right = {"codec": "fp32", "dtype": 1, "shape": FEATURE, "strides": [64, 1], "encoded_bytes": 8192}
    frame = Frame(
        step=step,
        role=role,
        block=1,
        placement_version=version,
        offset=offset,
        batch_samples=samples,
        tensor=TensorHeader(**{**right, **header}),
    )
    return message(payload, frames=[frame])


async def writing(stream):
    while True:
        await stream.write(LinkMessage(frames=[Frame(offset=1)]), bytes(20_000))


async def reading(stream):
    while True:
        await stream.receive()
