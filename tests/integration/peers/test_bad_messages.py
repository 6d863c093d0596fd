"""Messages that no command of ours sends: sessions that cannot be opened and damaged messages, each refused in
words."""

import json
import math
from contextlib import asynccontextmanager

import grpc
import pytest

from isthmus import run_training
from shared.errors import RefusedError
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader
from tests.support.commands import MLP
from tests.support.running import edge_config
from tests.support.wire import (
    BATCH,
    FEATURES,
    RawPeer,
    batch_packets,
    begin_link,
    block_packets,
    joining,
    open_request,
    opening,
    placed,
    positioned,
)

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode


@pytest.mark.usefixtures("serves_the_next")
async def test_an_agent_that_speaks_another_version(trainer):
    async with RawPeer(trainer) as peer:
        session = await peer.open_and_join()
        for version in (0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, 2**32 - 1):
            request = open_request(protocol_version=version)
            ends = [
                await peer.unary("OpenSession", request.SerializeToString()),
                await peer.unary("JoinSession", joining(session, 2, version)),
                await peer.streamed("Link", [opening(session, version=version)]),
            ]
            for end in ends:
                assert end.code is Code.FAILED_PRECONDITION
                assert f"protocol version {version}; this trainer speaks {PROTOCOL_VERSION}" in end.details
        assert (await peer.linked(session, [])).code is Code.OK, "the session is as it was"
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
        ({"cut": 0}, Code.INVALID_ARGUMENT, "raw samples would go from 'edge' to 'trainer', which takes none"),
        ({"cut": 4}, Code.INVALID_ARGUMENT, "must hold at least one block of 0 to 2"),
        ({"cut": 2**32 - 1}, Code.INVALID_ARGUMENT, "must hold at least one block of 0 to 2"),
        (
            {"placement": placed(workers=["edge"])},
            Code.INVALID_ARGUMENT,
            "is to be worker 'trainer'; the workers are 'edge', of",
        ),
        ({"placement": placed(tiles=[])}, Code.INVALID_ARGUMENT, "nobody has block 0"),
        ({"placement": placed(surprise=1)}, Code.INVALID_ARGUMENT, "surprise"),
        ({"placement": pb.Placement(document_json="[")}, Code.INVALID_ARGUMENT, "the placement is no JSON"),
        ({"placement": pb.Placement(document_json="[" * 60_000)}, Code.INVALID_ARGUMENT, "the placement is no JSON"),
        (
            {"placement": pb.Placement(document_json=" " * 100_000)},
            Code.INVALID_ARGUMENT,
            "the placement is 100000 characters of JSON; at most 65536",
        ),
        ({"placement": None}, Code.INVALID_ARGUMENT, "placement"),
        ({"worker": "edge"}, Code.INVALID_ARGUMENT, "this trainer is to be worker 'edge'"),
        ({"worker": "another"}, Code.INVALID_ARGUMENT, "this trainer is to be worker 'another'"),
        ({"backward": "guess"}, Code.INVALID_ARGUMENT, "backward is 'guess'"),
        ({"feedback": ""}, Code.INVALID_ARGUMENT, "feedback is ''"),
        ({"codec": "zip"}, Code.INVALID_ARGUMENT, "codec 'zip' does not exist"),
        ({"downlink_codec": ""}, Code.INVALID_ARGUMENT, 'codec of a codec is ""; it must be a name'),
        ({"staleness": 65}, Code.INVALID_ARGUMENT, "staleness of 65 is more than this trainer's limit of 64"),
        ({"loss": "hinge"}, Code.INVALID_ARGUMENT, "loss 'hinge' is unknown"),
        ({"loss": "os:system"}, Code.PERMISSION_DENIED, "is not allowed (models.allowed)"),
        ({"recipe_json": "{"}, Code.INVALID_ARGUMENT, "the recipe: "),
        ({"recipe_json": '{"seed": "x"}'}, Code.INVALID_ARGUMENT, "the recipe: "),
        ({"block_names": ["0", "1"]}, Code.FAILED_PRECONDITION, "chain of 2 blocks and the trainer's of 3"),
        ({"inputs": [TensorHeader(shape=[8, 10], dtype=1)]}, Code.INVALID_ARGUMENT, "10"),
        ({"inputs": [TensorHeader(shape=[8, 64], dtype=99)]}, Code.INVALID_ARGUMENT, "element type 99"),
        ({"inputs": []}, Code.INVALID_ARGUMENT, "has 0 inputs; it must have 1 to 32"),
        (
            {"inputs": [TensorHeader(shape=[8, 64], dtype=1)] * 33},
            Code.INVALID_ARGUMENT,
            "has 33 inputs; it must have 1 to 32",
        ),
        (
            {"inputs": [TensorHeader(shape=[8, 64], dtype=1), TensorHeader(shape=[4, 64], dtype=1)]},
            Code.INVALID_ARGUMENT,
            "differ in their first dimension",
        ),
        ({"input_names": ["b", "a"]}, Code.INVALID_ARGUMENT, "2 names of 1 inputs"),
        ({"input_names": ["no name"]}, Code.INVALID_ARGUMENT, "1 names of 1 inputs"),
        ({"input_names": ["self_"]}, Code.INVALID_ARGUMENT, "the key 'self_', which Sequential.forward"),
        ({"inputs": [TensorHeader(shape=[], dtype=1)]}, Code.INVALID_ARGUMENT, "has 0 dimensions"),
        ({"inputs": [TensorHeader(shape=[1] * 9, dtype=1)]}, Code.INVALID_ARGUMENT, "has 9 dimensions"),
        ({"inputs": [TensorHeader(shape=[1 << 20] * 8, dtype=1)]}, Code.INVALID_ARGUMENT, "bytes; it must have 1 to"),
        ({"inputs": [TensorHeader(shape=[0, 64], dtype=1)]}, Code.INVALID_ARGUMENT, "has 0 bytes"),
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
    """Tell whether there is room for a session again, and it takes a step."""

    async def check(peer):
        session = await peer.open_and_join()
        end = await peer.linked(session, map(serialize, batch_packets(0)))
        assert end.code is Code.OK, end
        await peer.reach(session, 1)
        await peer.close_session(session)

    return check


@asynccontextmanager
async def opened(address, **changes):
    async with RawPeer(address) as peer:
        session = await peer.open_and_join(**changes)
        try:
            yield peer, session
        finally:
            await peer.close_session(session)


@asynccontextmanager
async def linking(address, purpose, **changes):
    """Yield a function that sends messages on a link of a new session, for training or for an evaluation, and returns
    its end."""
    async with opened(address, **changes) as (peer, session):
        if purpose == "training":
            yield lambda packets: peer.linked(session, map(serialize, packets))
            return
        async with peer.evaluating(session):
            yield lambda packets: peer.linked(session, map(serialize, packets), evaluation=1)


PURPOSES = pytest.mark.parametrize("purpose", ["training", "evaluation"])


@pytest.mark.parametrize("kept", [0, 1, 8, 9, 20, -1], ids=str)
@pytest.mark.parametrize("method", ["Link", "UploadBlock"])
async def test_a_truncated_message(trainer, method, kept):
    async with opened(trainer) as (peer, session):
        whole = batch_packets(0) if method == "Link" else block_packets(session, 1, bytes(100))
        first = begin_link(session) if method == "Link" else []
        end = await peer.streamed(method, [*first, serialize(whole[0])[:kept]])
        assert end.code is Code.DATA_LOSS
        assert end.details.startswith("damaged message: it")


@pytest.mark.usefixtures("serves_the_next")
async def test_a_message_larger_than_the_trainer_takes(trainer):
    for method in ("Link", "UploadBlock"):
        async with opened(trainer) as (peer, session):
            huge = serialize(Packet(LinkMessage(), bytes(9 * 1024 * 1024)))
            end = await peer.streamed(method, [*begin_link(session), huge] if method == "Link" else [huge])
            assert end.code is Code.RESOURCE_EXHAUSTED
            assert "larger than max" in end.details


@pytest.mark.first_case
@PURPOSES
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.usefixtures("serves_the_next")
async def test_a_multi_bit_feature_of_another_size_than_its_shape_has(trainer, purpose, bits):
    right = 8 + 4 * (bits + 1) + math.ceil(BATCH * FEATURES * bits / 8)
    for size in (0, 8, right - 1, right, right + 1, BATCH * FEATURES * 4):
        labels, feature = batch_packets(0, codec=f"mbq{bits}", chunk_bytes=1 << 20)
        assert len(feature.payload) == right
        if size != right:
            feature.message.frames[0].tensor.encoded_bytes, feature.payload = size, bytes(size)
        async with linking(trainer, purpose, codec=f"mbq{bits}") as send:
            end = await send([labels, feature])
        says = f"the feature of step 0 (block 1): announces {size} bytes; mbq{bits} of (8, 64) has {right}"
        assert (end.code, end.details) == ((Code.OK, "") if size == right else (Code.INVALID_ARGUMENT, says))


@pytest.mark.usefixtures("serves_the_next")
async def test_a_chunk_longer_than_announced(trainer):
    async with opened(trainer) as (peer, session):
        first, *_ = batch_packets(0)
        first.payload = bytes(first.message.frames[0].tensor.encoded_bytes + 1)
        end = await peer.linked(session, [serialize(first)])
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == (
            "the label of step 0 (block 3): a chunk of 65 bytes at byte 0 does not fit the 64 bytes announced"
        )
        assert await peer.next_step(session) == 0, "the session is as it was, and can be linked again"


@pytest.mark.usefixtures("serves_the_next")
async def test_a_stream_that_ends_in_the_middle_of_a_tensor(trainer):
    async with opened(trainer) as (peer, session):
        labels, (first, *_) = batch_in_parts()
        end = await peer.linked(session, map(serialize, [*labels, first]))
        assert (end.code, end.details) == (Code.INVALID_ARGUMENT, "the stream ended in the middle of a tensor")


def batch_in_parts(step=0):
    """The messages of a batch: all of its first tensor's, and those of its second."""
    packets = batch_packets(step)
    first = [packet for packet in packets if packet.message.frames[0].role == packets[0].message.frames[0].role]
    return first, packets[len(first) :]


@pytest.mark.usefixtures("serves_the_next")
async def test_a_batch_goes_on_where_a_link_has_ended_in_the_middle_of_it(trainer):
    async with opened(trainer) as (peer, session):
        labels, feature = batch_in_parts()
        assert (await peer.linked(session, map(serialize, labels))).code is Code.OK
        again = await peer.linked(session, map(serialize, labels))
        assert again.code is Code.INVALID_ARGUMENT
        assert "label 3 of step 0 came from 'edge'; step 1 is next" in again.details
        assert (await peer.linked(session, map(serialize, feature))).code is Code.OK
        await peer.reach(session, 1)


@pytest.mark.usefixtures("serves_the_next")
async def test_a_batch_that_is_announced_before_the_one_before_it_is_whole(trainer):
    async with opened(trainer) as (peer, session):
        half, following = batch_packets(0)[:-1], batch_packets(1)
        end = await peer.linked(session, map(serialize, [*half, following[0]]))
        assert end.code is Code.INVALID_ARGUMENT
        assert "K is 0 and step 0 is not answered, so step 0 is the latest that may come" in end.details


@PURPOSES
async def test_the_chunks_of_labels_and_feature_may_be_mixed(trainer, purpose):
    batch = batch_packets(0, chunk_bytes=32)
    first, *labels = [packet for packet in batch if packet.message.frames[0].role == Role.ROLE_LABEL]
    feature = [packet for packet in batch if packet.message.frames[0].role == Role.ROLE_FEATURE]
    mixed = [first, *feature[:3], *labels[:-1], *feature[3:], labels[-1]]
    assert sorted(map(serialize, mixed)) == sorted(map(serialize, batch))
    async with linking(trainer, purpose) as send:
        end = await send(mixed)
        assert end.code is Code.OK, end


@pytest.mark.parametrize(
    "late",
    [{"opening": LinkOpening(session_id="another")}, {"position": LinkPosition(dones_received=1)}],
    ids=["opening", "position"],
)
@pytest.mark.parametrize("at", range(3))
@pytest.mark.usefixtures("serves_the_next")
async def test_a_chunk_that_brings_something_else_with_it(trainer, at, late):
    async with opened(trainer) as (peer, session):
        batch = batch_packets(0)
        batch[at].message.MergeFrom(LinkMessage(**late))
        end = await peer.linked(session, map(serialize, batch))
        assert end.code is Code.INVALID_ARGUMENT, end
        assert "neither a frame, an ack, a step that is done nor a stop" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_more_batches_in_flight_than_agreed(trainer):
    async with opened(trainer) as (peer, session):
        end = await peer.linked(session, [serialize(packet) for step in range(50) for packet in batch_packets(step)])
        assert end.code is Code.INVALID_ARGUMENT
        assert "K is 0 and step" in end.details


@PURPOSES
@pytest.mark.usefixtures("serves_the_next")
async def test_labels_of_another_shape_than_a_loss_of_numbers_takes(trainer, purpose):
    async with linking(trainer, purpose, loss="mse") as send:
        end = await send(batch_packets(0))
        assert end.code is Code.INVALID_ARGUMENT
        assert end.details == (
            "loss 'mse' takes labels of the output's own shape: the model's output is (8, 10), the labels are (8,)"
        )


@pytest.mark.usefixtures("serves_the_next")
async def test_a_first_message_that_does_more_than_open(trainer):
    async with opened(trainer) as (peer, session):
        first, *_ = batch_packets(0)
        plain = serialize(first)
        first.message.opening.session_id = session
        for message in (plain, serialize(first), positioned()):
            end = await peer.streamed("Link", [message])
            assert end.code is Code.INVALID_ARGUMENT
            assert "begins with a message that opens it and does nothing else" in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_a_link_that_says_nowhere_or_somewhere_else_where_it_stands(trainer):
    async with opened(trainer) as (peer, session):
        begins = {
            serialize(batch_packets(0)[0]): "began with something else than a position",
            positioned(version=1): "holds placement 1; 0 is in force",
            positioned(next_step=7): "waits for error_gradient 1 of step 7",
            positioned(dones=7): "waits for something else than comes to it",
            positioned(cut=2): "waits for something else than comes to it",
        }
        for position, says in begins.items():
            end = await peer.linked(session, [], position=position)
            is_position = "began with" not in says
            assert end.code is (Code.FAILED_PRECONDITION if is_position else Code.INVALID_ARGUMENT), end
            assert says in end.details


@pytest.mark.usefixtures("serves_the_next")
async def test_an_upload_that_goes_on_in_another_session(trainer):
    async with RawPeer(trainer) as peer:
        session = await peer.open()
        block = block_packets(session, 1, bytes(10_000))
        block[1].message.session_id = "another"
        end = await peer.streamed("UploadBlock", map(serialize, block))
        await peer.close_session(session)
        assert end.code is Code.INVALID_ARGUMENT
        assert "a message for session 'another' came on a stream of session" in end.details
