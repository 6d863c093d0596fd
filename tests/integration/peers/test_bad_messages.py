"""What no command of ours sends: sessions that cannot be opened and messages that were damaged, each refused in words."""

import json
from contextlib import asynccontextmanager

import grpc
import pytest

from edge_agent import run_training
from shared.errors import RefusedError
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader
from tests.support.commands import MLP
from tests.support.running import edge_config
from tests.support.wire import BATCH, RawPeer, attach, batch_packets, block_packets, open_request

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode


@pytest.mark.usefixtures("serves_the_next")
async def test_an_edge_that_speaks_another_version(trainer):
    async with RawPeer(trainer) as peer:
        session = await peer.open()
        for version in (0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, 2**32 - 1):
            request = open_request(protocol_version=version)
            opening = await peer.unary("OpenSession", request.SerializeToString())
            attaching = await peer.streamed("Train", [attach(session, version=version)])
            for end in (opening, attaching):
                assert end.code is Code.FAILED_PRECONDITION
                assert f"protocol version {version}; this trainer speaks {PROTOCOL_VERSION}" in end.details
        assert (await peer.streamed("Train", [attach(session)])).code is Code.OK, "the session is as it was"
        await peer.close_session(session)


@pytest.mark.parametrize(
    "factory", ["os:system", "shared.model.zoo.os:system", "shared.model.zooo:mlp", "shared:errors"]
)
async def test_no_factory_that_is_not_allowed_is_run(trainer, factory):
    async with RawPeer(trainer) as peer:
        request = open_request(model=pb.Model(factory=factory, kwargs_json='{"command": "exit 1"}'))
        end = await peer.unary("OpenSession", request.SerializeToString())
        assert end.code in (Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED)
        assert repr(factory) in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_one_session_more_than_there_is_room_for(trainer):
    async with RawPeer(trainer) as peer:
        session = await peer.open()
        config = edge_config(*MLP, f"trainer.address={trainer}")
        with pytest.raises(RefusedError, match=r"1 sessions are open, .*\(server.max_sessions\)"):
            await run_training(config)
        assert await peer.next_step(session) == 0, "the session that was there is as it was"
        await peer.close_session(session)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (
            {"cut": 0},
            Code.INVALID_ARGUMENT,
            "cut 0 is out of range; this model has 3 blocks (0, 1, 2), so a cut is 1 to 3",
        ),
        ({"cut": 4}, Code.INVALID_ARGUMENT, "cut 4 is out of range"),
        ({"cut": 2**32 - 1}, Code.INVALID_ARGUMENT, "cut 4294967295 is out of range"),
        ({"codec": "zip"}, Code.INVALID_ARGUMENT, "codec 'zip' does not exist"),
        ({"downlink_codec": ""}, Code.INVALID_ARGUMENT, "codec '' does not exist"),
        ({"staleness": 65}, Code.INVALID_ARGUMENT, "staleness of 65 is more than this trainer's limit of 64"),
        ({"loss": "hinge"}, Code.INVALID_ARGUMENT, "loss 'hinge' is unknown"),
        ({"loss": "os:system"}, Code.PERMISSION_DENIED, "is not allowed (models.allowed)"),
        ({"recipe_json": "{"}, Code.INVALID_ARGUMENT, "the recipe: "),
        ({"recipe_json": '{"seed": "x"}'}, Code.INVALID_ARGUMENT, "the recipe: "),
        ({"block_names": ["0", "1"]}, Code.FAILED_PRECONDITION, "chain of 2 blocks and the trainer's of 3"),
        ({"example": TensorHeader(shape=[8, 10], dtype=1)}, Code.INVALID_ARGUMENT, "10"),
        ({"example": TensorHeader(shape=[8, 64], dtype=99)}, Code.INVALID_ARGUMENT, "element type 99"),
        ({"example": TensorHeader(shape=[], dtype=1)}, Code.INVALID_ARGUMENT, "has 0 dimensions"),
        ({"example": TensorHeader(shape=[1] * 9, dtype=1)}, Code.INVALID_ARGUMENT, "has 9 dimensions"),
        ({"example": TensorHeader(shape=[1 << 20] * 8, dtype=1)}, Code.INVALID_ARGUMENT, "bytes; it must have 1 to"),
        ({"example": TensorHeader(shape=[0, 64], dtype=1)}, Code.INVALID_ARGUMENT, "has 0 bytes"),
        ({"model": pb.Model()}, Code.INVALID_ARGUMENT, "is not a factory; write it as package.module:factory"),
        (
            {"model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json="[")},
            Code.INVALID_ARGUMENT,
            "arguments are no JSON",
        ),
        (
            {"model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json='{"\\ud800\\n\\u001b": 1}')},
            Code.INVALID_ARGUMENT,
            "unexpected keyword argument",
        ),
        (
            {"model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json=json.dumps({"k" * 60_000: 1}))},
            Code.INVALID_ARGUMENT,
            "unexpected keyword argument",
        ),
        (
            {"model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json=json.dumps({"k" * 100_000: 1}))},
            Code.INVALID_ARGUMENT,
            "at most 65536 are taken",
        ),
        (
            {"recipe_json": " " * 100_000},
            Code.INVALID_ARGUMENT,
            "the recipe is 100000 characters of JSON; at most 65536",
        ),
    ],
)
async def test_sessions_that_cannot_be_opened(trainer, serves_the_next_cheaply, changes, code, says):
    async with RawPeer(trainer) as peer:
        end = await peer.unary("OpenSession", open_request(**changes).SerializeToString())
        assert end.code is code, end
        assert says in end.details
        assert end.details.isprintable()
        await serves_the_next_cheaply(peer)


@pytest.fixture
def serves_the_next_cheaply():
    """Whether there is room for a session again, and it takes a step."""

    async def check(peer):
        session = await peer.open()
        end = await peer.streamed("Train", [attach(session), *map(serialize, batch_packets(pb.TrainRequest, 0))])
        assert end.code is Code.OK, end
        assert await peer.next_step(session) == 1
        await peer.close_session(session)

    return check


@asynccontextmanager
async def opened(address, **changes):
    async with RawPeer(address) as peer:
        session = await peer.open(**changes)
        try:
            yield peer, session
        finally:
            await peer.close_session(session)


@pytest.mark.parametrize("kept", [0, 1, 8, 9, 20, -1], ids=str)
@pytest.mark.parametrize("method", ["Train", "Evaluate", "UploadBlock"])
async def test_a_truncated_message(trainer, method, kept):
    message = {"Train": pb.TrainRequest, "Evaluate": pb.EvaluateRequest, "UploadBlock": pb.UploadBlockRequest}[method]
    async with opened(trainer) as (peer, session):
        whole = serialize(batch_packets(message, 0)[0])
        first = [attach(session)] if method == "Train" else []
        end = await peer.streamed(method, [*first, whole[:kept]])
        assert end.code is Code.DATA_LOSS
        assert end.details.startswith("damaged message: it")


@pytest.mark.usefixtures("serves_the_next")
async def test_a_message_larger_than_the_trainer_takes(trainer):
    for method, first in (("Train", True), ("Evaluate", False), ("UploadBlock", False)):
        async with opened(trainer) as (peer, session):
            huge = serialize(Packet(pb.TrainRequest(), bytes(9 * 1024 * 1024)))
            end = await peer.streamed(method, [attach(session), huge] if first else [huge])
            assert end.code is Code.RESOURCE_EXHAUSTED
            assert "larger than max" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_a_chunk_longer_than_announced(trainer):
    async with opened(trainer) as (peer, session):
        first, *_ = batch_packets(pb.TrainRequest, 0)
        first.payload = bytes(first.message.frame.tensor.encoded_bytes + 1)
        end = await peer.streamed("Train", [attach(session), serialize(first)])
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == ("the label of step 0: a chunk of 65 bytes at byte 0 does not fit the 64 bytes announced")
        assert await peer.next_step(session) == 0, "the session is as it was, and can be attached again"


@pytest.mark.usefixtures("serves_the_next")
async def test_a_stream_that_ends_in_the_middle_of_a_tensor(trainer):
    async with opened(trainer) as (peer, session):
        labels, (first, *_) = batch_in_parts()
        end = await peer.streamed("Train", [attach(session), *map(serialize, [*labels, first])])
        assert (end.code, end.details) == (Code.INVALID_ARGUMENT, "the stream ended in the middle of a tensor")


def batch_in_parts(step=0):
    """The messages of a batch: all of its first tensor's, and those of its second."""
    packets = batch_packets(pb.TrainRequest, step)
    first = [packet for packet in packets if packet.message.frame.role == packets[0].message.frame.role]
    return first, packets[len(first) :]


@pytest.mark.usefixtures("serves_the_next")
async def test_a_stream_that_ends_in_the_middle_of_a_batch(trainer):
    async with opened(trainer) as (peer, session):
        half, _ = batch_in_parts()
        end = await peer.streamed("Train", [attach(session), *map(serialize, half)])
        assert end.code is Code.INVALID_ARGUMENT
        assert "the stream ended in the middle of a batch" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_a_batch_that_is_announced_before_the_one_before_it_is_whole(trainer):
    async with opened(trainer) as (peer, session):
        half, following = batch_packets(pb.TrainRequest, 0)[:-1], batch_packets(pb.TrainRequest, 1)
        end = await peer.streamed("Train", [attach(session), *map(serialize, half), serialize(following[0])])
        assert end.code is Code.FAILED_PRECONDITION
        assert end.details == "the label of step 1 came where nothing was expected"


@pytest.mark.parametrize("method", ["Train", "Evaluate"])
async def test_the_chunks_of_labels_and_feature_may_be_mixed(trainer, method):
    async with opened(trainer) as (peer, session):
        fields = {} if method == "Train" else {"session_id": session}
        batch = batch_packets(getattr(pb, f"{method}Request"), 0, chunk_bytes=32, **fields)
        first, *labels = [packet for packet in batch if packet.message.frame.role == Role.ROLE_LABEL]
        feature = [packet for packet in batch if packet.message.frame.role == Role.ROLE_FEATURE]
        mixed = [first, *feature[:3], *labels[:-1], *feature[3:], labels[-1]]
        assert sorted(map(serialize, mixed)) == sorted(map(serialize, batch))
        end = await peer.streamed(method, [*([] if fields else [attach(session)]), *map(serialize, mixed)])
        assert end.code is Code.OK, end
        if method == "Train":
            assert await peer.next_step(session) == 1
        else:
            assert pb.EvaluateResponse.FromString(end.responses[0]).samples == BATCH


NEXT = pb.Deployment(version=1, cut=1, staleness=0, codec="fp32", downlink_codec="fp32")


@pytest.mark.parametrize("chunks", [1, 0], ids=["in the middle of a tensor", "between its two tensors"])
@pytest.mark.usefixtures("serves_the_next")
async def test_a_deployment_in_the_middle_of_a_batch(trainer, chunks):
    async with opened(trainer) as (peer, session):
        first, second = batch_in_parts()
        second[0].message.frame.deployment_version = 1 - chunks
        batch = [*first, *second]
        batch.insert(len(first) + chunks, Packet(pb.TrainRequest(deployment=NEXT)))
        end = await peer.streamed("Train", [attach(session), *map(serialize, batch)])
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == "a message that is no frame came in the middle of a batch; it may come between two"


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(
    "more", [{"deployment": NEXT}, {"attach": pb.Attach(session_id="another")}], ids=["deployment", "attach"]
)
@pytest.mark.usefixtures("serves_the_next")
async def test_a_chunk_that_brings_something_else_with_it(trainer, at, more):
    async with opened(trainer) as (peer, session):
        batch = batch_packets(pb.TrainRequest, 0)
        batch[at].message.MergeFrom(pb.TrainRequest(**more))
        end = await peer.streamed("Train", [attach(session), *map(serialize, batch)])
        assert end.code is Code.INVALID_ARGUMENT, end


@pytest.mark.usefixtures("serves_the_next")
async def test_a_deployment_that_attaches_too(trainer):
    async with opened(trainer) as (peer, session):
        both = Packet(pb.TrainRequest(deployment=NEXT, attach=pb.Attach(session_id=session)))
        end = await peer.streamed("Train", [attach(session), serialize(both)])
        assert end.code is Code.INVALID_ARGUMENT
        assert "neither a frame, an ack, a deployment alone nor a checkpoint alone" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_more_batches_in_flight_than_agreed(trainer):
    async with opened(trainer) as (peer, session):
        batches = [packet for step in range(50) for packet in batch_packets(pb.TrainRequest, step)]
        end = await peer.streamed("Train", [attach(session), *map(serialize, batches)])
        assert end.code is Code.FAILED_PRECONDITION
        assert "there are 2 batches in flight; K is 0, so there may be 1" in end.details


@pytest.mark.parametrize("method", ["Train", "Evaluate"])
@pytest.mark.usefixtures("serves_the_next")
async def test_labels_of_another_shape_than_a_loss_of_numbers_takes(trainer, method):
    async with opened(trainer, loss="mse") as (peer, session):
        fields = {} if method == "Train" else {"session_id": session}
        batch = map(serialize, batch_packets(getattr(pb, f"{method}Request"), 0, **fields))
        end = await peer.streamed(method, [*([] if fields else [attach(session)]), *batch])
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == (
            "loss 'mse' takes labels of the output's own shape: the model's output is (8, 10), the labels are (8,)"
        )


@pytest.mark.usefixtures("serves_the_next")
async def test_a_first_message_that_does_more_than_attach(trainer):
    async with opened(trainer) as (peer, session):
        first, *_ = batch_packets(pb.TrainRequest, 0)
        first.message.attach.session_id = session
        for message in (serialize(first), serialize(batch_packets(pb.TrainRequest, 0)[0])):
            end = await peer.streamed("Train", [message])
            assert end.code is Code.INVALID_ARGUMENT
            assert "begins with a message that attaches it and does nothing else" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_an_upload_that_goes_on_in_another_session(trainer):
    async with opened(trainer) as (peer, session):
        block = block_packets(session, 1, bytes(10_000))
        block[1].message.session_id = "another"
        end = await peer.streamed("UploadBlock", map(serialize, block))
        assert end.code is Code.INVALID_ARGUMENT
        assert "a message for session 'another' came on a stream of session" in end.details
