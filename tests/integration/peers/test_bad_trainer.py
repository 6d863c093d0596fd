"""A trainer that breaks the contract ends the agent with one sentence, never with a traceback."""

import asyncio
import math

import grpc
import pytest

from cloud_trainer.server import TrainerServer
from isthmus import run_training
from shared.client.config import TrainerAddressConfig
from shared.client.link_call import StreamListener
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import IsthmusError, ProtocolError, RefusedError
from shared.transport.stream.packets import Packet, deserializer, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening, LinkRate, StepDone
from shared.wire.isthmus.v1.tensor_pb2 import Ack, Frame, Role, TensorHeader
from tests.support.peers.trainers import (
    FLAGS,
    LINKED,
    OPENED,
    agents_end,
    gradient,
    linking,
    message,
    position,
    reading,
    trainer_with,
    writing,
)
from tests.support.running import edge_config, trainer_config

pytestmark = pytest.mark.usefixtures("one_thread")


def done(**figures):
    """The trainer has done the first step, with such figures."""
    return message(dones=[StepDone(worker="trainer", **figures)])


@pytest.mark.parametrize(
    ("code", "left"),
    [
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.UNKNOWN, True),
        (grpc.StatusCode.UNIMPLEMENTED, True),
        (grpc.StatusCode.FAILED_PRECONDITION, False),
        (grpc.StatusCode.DATA_LOSS, False),
    ],
)
async def test_after_a_failure_that_may_be_the_connections_the_next_call_has_another(code, left):
    peers = []

    async def get_session(_request, context):
        peers.append(context.peer())
        await context.abort(code, "Error parsing 'te' metadata")

    config = edge_config(*FLAGS)
    async with trainer_with("GetSession", grpc.unary_unary_rpc_method_handler(get_session)) as address:
        trainer = config.trainer.model_copy(update={"address": address})
        async with TrainerClient(trainer, config.link) as client:
            for _ in range(3):
                with pytest.raises(ProtocolError):
                    await client.get_session("s")
    assert len(set(peers)) == (3 if left else 1)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("first", "says"),
    [
        ([message(dones=[StepDone()])], "did not open the link"),
        ([b""], "damaged message: it does not end with a checksum"),
        ([b"\xff" * 40], "damaged message"),
        ([OPENED[:-1] + b"\x00"], "damaged message: its checksum is wrong"),
        ([OPENED, OPENED], "began with something else than a position"),
        ([OPENED, position(version=7)], "holds placement 7; 0 is in force"),
        ([OPENED, position(next_step=7)], "of step 7"),
        ([OPENED, position(roles=[Role.ROLE_FEATURE])], "waits for something else than comes to it"),
        ([OPENED, position(dones=3)], "waits for something else than comes to it"),
    ],
)
async def test_a_link_that_begins_wrongly(first, says):
    assert says in await agents_end("Link", linking(*first))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "damaged message"),
        (message(b"xyz"), "a payload came without a frame"),
        (message(ack=Ack(received_bytes=2**62)), "acknowledges 4611686018427387904 bytes of"),
        (message(dones=[StepDone(worker="trainer", step=9)]), "has done step 9; of it, step 0 is next"),
        (message(dones=[StepDone(worker="another")]), "says what 'another' has done; others pass that on"),
        (done(compute_seconds=math.nan), "nan seconds of computing"),
        (done(compute_seconds=-1.0), "-1.0 seconds of computing"),
        (done(compute_start_nanoseconds=2**64 - 1), "a clock at 18446744073709551615 nanoseconds"),
        (done(samples=33), "the loss of 33 samples; it has 32 at most"),
        (done(samples=32, correct=33), "33 samples that are right of 32"),
        (done(rates=[LinkRate(to="nobody", bits_per_second=1.0)]), "figures of links that it has not"),
        (done(rates=[LinkRate(to="edge", bits_per_second=math.nan)]), "figures of links that it has not"),
        (message(ack=Ack(receiver_nanoseconds=2**63)), "the peer's clock is at 9223372036854775808 nanoseconds"),
        (OPENED, "neither a frame, an ack, a step that is done nor a stop"),
        (gradient(step=1), "step 1"),
        (gradient(role=4), "4"),
        (gradient(role=99), "99"),
        (gradient(version=3), "placement 3"),
        (gradient(offset=8), "a chunk at byte 8 came where byte 0 was expected"),
        (gradient(samples=33), "torch.float32 (33, 64) was expected"),
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
async def test_an_answer_that_breaks_the_contract(tmp_path, answer, says):
    trace = f"output.trace={tmp_path / 'trace.json'}"
    assert says in await agents_end("Link", linking(*LINKED, answer, after_steps=1), trace)


async def test_a_link_that_ends_early():
    assert "ended the link in the middle of training" in await agents_end("Link", linking(*LINKED, after_steps=1))


async def test_a_link_that_ends_in_the_middle_of_a_tensor():
    half = linking(*LINKED, gradient(bytes(100)), after_steps=1, then_reads=1)  # what it reads is the ack
    assert "ended in the middle of a tensor" in await agents_end("Link", half)


async def test_a_block_that_was_not_asked_for():
    async def download(_request, context):
        header = TensorHeader(codec="raw", dtype=7, shape=[4], strides=[1], encoded_bytes=4)
        frame = Frame(block=0, role=Role.ROLE_BLOCK, tensor=header)
        await context.write(serialize(Packet(pb.DownloadBlockResponse(frame=frame), b"abcd")))

    handler = grpc.unary_stream_rpc_method_handler(download)
    assert "the state of block 0; block 1 was asked for" in await agents_end("DownloadBlock", handler)


async def test_a_block_that_is_no_file():
    async def download(request, context):
        block = pb.DownloadBlockRequest.FromString(request).block
        header = TensorHeader(codec="raw", dtype=7, shape=[4], strides=[1], encoded_bytes=4)
        frame = Frame(block=block, role=Role.ROLE_BLOCK, tensor=header)
        await context.write(serialize(Packet(pb.DownloadBlockResponse(frame=frame), b"abcd")))

    handler = grpc.unary_stream_rpc_method_handler(download)
    assert "safetensors" in await agents_end("DownloadBlock", handler)


async def test_an_answer_that_is_no_message():
    async def answer(_request, _context):
        return b"\xff" * 20

    handler = grpc.unary_unary_rpc_method_handler(answer)
    assert "damaged message: it is not a message of this contract" in await agents_end("OpenSession", handler)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"block_digests": [1, 2]}, "digests of 2 blocks; the model has 3"),
        ({"block_digests": [1, 2, 3, 4]}, "digests of 4 blocks; the model has 3"),
        ({"max_message_bytes": 1024}, "link.chunk_bytes is 1048576; trainer 'trainer' takes at most 1024"),
        ({"block_digests": [0, 0, 0], "session_id": "5e55" * 8}, "there is no session '5e55"),
    ],
)
async def test_a_session_that_opens_wrongly_is_closed(answer, says):
    closed = []

    async def open_wrongly(request, context):
        response = await real.service.open_session(pb.OpenSessionRequest.FromString(request), context)
        response.ClearField("block_digests")
        response.MergeFrom(pb.OpenSessionResponse(**{"block_digests": [0, 0, 0], **answer}))
        if "max_message_bytes" in answer:
            response.max_message_bytes = answer["max_message_bytes"]
        return response.SerializeToString()

    real = TrainerServer(trainer_config())
    close = real.service.close_session

    async def noted(request, context):
        closed.append(request.session_id)
        return await close(request, context)

    real.service.close_session = noted
    opened = grpc.unary_unary_rpc_method_handler(open_wrongly)
    async with trainer_with("OpenSession", opened, real) as address, asyncio.timeout(200):
        with pytest.raises(IsthmusError, match=says):
            await run_training(edge_config(*FLAGS, f"trainer.address={address}", "trainer.connect_timeout_seconds=0.5"))
    if "session_id" in answer:
        assert closed, "the trainer may be another process than that which opened it, so it is opened again for a while"
    else:
        assert len(closed) == 1


async def test_a_refusal_that_meets_what_the_edge_is_sending_keeps_its_sentence():
    """gRPC would now and then say of such a stream that it had an internal error, and no more."""

    async def link(_requests, context):
        await context.read()
        await context.write(OPENED)
        await context.read()
        for _ in range(5):
            await context.write(message(dones=[StepDone()]))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the disk is full")

    handler = grpc.stream_stream_rpc_method_handler(link, request_deserializer=deserializer(LinkMessage))
    async with (
        trainer_with("Link", handler) as address,
        TrainerClient(TrainerAddressConfig(address=address), LinkConfig()) as client,
    ):
        for _ in range(100):
            opening = LinkOpening(session_id="any", session_term=1, worker="edge")
            call, _ = await client.link(opening, StreamListener(lambda *_: None, lambda: None, lambda *_: None))
            tasks = [asyncio.create_task(writing(call.stream)), asyncio.create_task(reading(call.stream))]
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, RefusedError), ended
                assert str(ended) == f"the trainer at {address} refused: the disk is full"
