"""A trainer that breaks the contract ends the agent with one sentence, never with a traceback and never with a wait."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
import torch

from cloud_trainer import TrainerServer
from edge_agent import run_training
from shared.errors import ProtocolError
from shared.transport.packets import Packet, deserializer, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Ack, Frame, Role, TensorHeader
from tests.support.running import edge_config, trainer_config

FEATURE = [32, 64]
FLAGS = [
    'model.factory="shared.model.zoo:mlp"',
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "deployment.cut=1",
    "training.max_steps=3",
    "trainer.connect_timeout_seconds=30",
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Spoilt(grpc.GenericRpcHandler):
    """The real service, but for one method that answers with the bytes it is told to."""

    def __init__(self, real, method, handler):
        self._real, self._method, self._handler = real, method, handler

    def service(self, details):
        return self._handler if details.method.endswith(f"/{self._method}") else self._real.service(details)


@asynccontextmanager
async def trainer_with(method, handler):
    """The address of a trainer whose `method` is another."""
    real = TrainerServer(trainer_config())
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Spoilt(real.service.handlers(), method, handler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        real.service.close()


def training(*answers, after_steps=0, then_reads=0):
    """A training stream that answers the attach, waits for so many batches, says all of this, reads on, and ends."""

    async def train(_requests, context):
        assert (await context.read()).message.HasField("attach")
        labels = 0
        await context.write(answers[0])
        while labels < after_steps:
            frame = (await context.read()).message.frame
            labels += frame.role == Role.ROLE_LABEL and frame.offset == 0
        for answer in answers[1:]:
            await context.write(answer)
        for _ in range(then_reads):
            await context.read()

    return grpc.stream_stream_rpc_method_handler(train, request_deserializer=deserializer(pb.TrainRequest))


async def agents_end(method, handler):
    """The sentence that the agent ends with."""
    async with trainer_with(method, handler) as address, asyncio.timeout(60):
        with pytest.raises(ProtocolError) as ended:
            await run_training(edge_config(*FLAGS, f"trainer.address={address}"))
    assert "\n" not in str(ended.value)
    return str(ended.value)


def message(payload=b"", **fields):
    return serialize(Packet(pb.TrainResponse(**fields), payload))


ATTACHED = message(attached=pb.Attached(next_step=0))


def gradient(payload=bytes(8192), step=0, role=Role.ROLE_ERROR_GRADIENT, epoch=0, offset=0, **header):
    right = {"codec": "fp32", "dtype": 1, "shape": FEATURE, "strides": [64, 1], "encoded_bytes": 8192}
    tensor = TensorHeader(**{**right, **header})
    frame = Frame(step=step, role=role, deployment_epoch=epoch, offset=offset, tensor=tensor)
    return message(payload, frame=frame)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (message(report=pb.StepReport()), "did not answer the attach message"),
        (message(attached=pb.Attached(next_step=7)), "waits for step 7; step 0 is next"),
        (b"", "damaged message: it does not end with a checksum"),
        (b"\xff" * 40, "damaged message"),
        (ATTACHED[:-1] + b"\x00", "damaged message: its checksum is wrong"),
    ],
)
async def test_an_attach_that_is_answered_wrongly(first, says):
    assert says in await agents_end("Train", training(first))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "damaged message"),
        (message(b"xyz"), "a payload came without a frame"),
        (message(ack=Ack(received_bytes=2**62)), "acknowledges 4611686018427387904 bytes of"),
        (message(report=pb.StepReport(step=9)), "step 9, which is not in flight"),
        (gradient(step=1), "step 1"),
        (gradient(role=Role.ROLE_OUTPUT), "output"),
        (gradient(role=99), "99"),
        (gradient(epoch=3), "deployment 3"),
        (gradient(offset=8), "a chunk at byte 8 came where byte 0 was due"),
        (gradient(shape=[1 << 38, 1], encoded_bytes=1 << 40), "(274877906944, 1)"),
        (gradient(shape=[]), "()"),
        (gradient(dtype=2), "step 0"),
        (gradient(dtype=77), "element type 77"),
        (gradient(codec="raw"), "'fp32' is agreed"),
        (gradient(strides=[1 << 40, 1]), "bytes"),
        (gradient(encoded_bytes=1 << 40), "announces 1099511627776 bytes"),
        (gradient(bytes(9000)), "does not fit the 8192 bytes announced"),
    ],
)
async def test_an_answer_that_breaks_the_contract(answer, says):
    assert says in await agents_end("Train", training(ATTACHED, answer, after_steps=1))


async def test_a_stream_that_ends_early():
    assert "ended the stream in the middle of training" in await agents_end("Train", training(ATTACHED, after_steps=1))


async def test_a_stream_that_ends_in_the_middle_of_a_tensor():
    half = training(ATTACHED, gradient(bytes(100)), after_steps=1, then_reads=1)  # what it reads is the ack
    assert "ended in the middle of a tensor" in await agents_end("Train", half)


async def test_a_block_that_was_not_asked_for():
    async def download(_request, context):
        header = TensorHeader(codec="raw", dtype=7, shape=[4], strides=[1], encoded_bytes=4)
        frame = Frame(step=0, role=Role.ROLE_BLOCK, tensor=header)
        await context.write(serialize(Packet(pb.DownloadBlockResponse(frame=frame), b"abcd")))

    handler = grpc.unary_stream_rpc_method_handler(download)
    assert "the block of step 0; block 1 was asked for" in await agents_end("DownloadBlock", handler)


async def test_a_block_that_is_no_file():
    async def download(request, context):
        block = pb.DownloadBlockRequest.FromString(request).block
        header = TensorHeader(codec="raw", dtype=7, shape=[4], strides=[1], encoded_bytes=4)
        frame = Frame(step=block, role=Role.ROLE_BLOCK, tensor=header)
        await context.write(serialize(Packet(pb.DownloadBlockResponse(frame=frame), b"abcd")))

    handler = grpc.unary_stream_rpc_method_handler(download)
    assert "safetensors" in await agents_end("DownloadBlock", handler)


async def test_an_answer_that_is_no_message():
    async def answer(_request, _context):
        return b"\xff" * 20

    handler = grpc.unary_unary_rpc_method_handler(answer)
    assert "damaged message: it is not a message of this contract" in await agents_end("OpenSession", handler)
