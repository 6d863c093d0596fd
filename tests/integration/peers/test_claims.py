"""A tensor that is announced is judged before it costs anything: what a few bytes claim takes neither memory nor time."""

from pathlib import Path

import grpc
import pytest

from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.running import trainer_process
from tests.support.wire import BATCH, CUT, FEATURES, RawPeer, attach, batch_packets

MIB = 1 << 20
MOST_GROWTH_BYTES = 64 * MIB
LABEL, FEATURE = Role.ROLE_LABEL, Role.ROLE_FEATURE
OWN_LOSS = "tests.support.models.losses:of_the_first"


@pytest.fixture(scope="module")
def trainer():
    """A trainer with the limits that users have."""
    with trainer_process("compute.threads=1") as running:
        yield running


def peak_bytes(process):
    """The most memory that a process has ever held."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux says nothing of this process's memory")


def claim(role, shape, strides, dtype, sent_elements):
    """One frame that announces this and brings all of its bytes."""
    size = (
        sent_elements * {DataType.DATA_TYPE_INT64: 8, DataType.DATA_TYPE_FLOAT32: 4, DataType.DATA_TYPE_UINT8: 1}[dtype]
    )
    codec = "raw" if role == Role.ROLE_LABEL else "fp32"
    header = TensorHeader(codec=codec, dtype=dtype, shape=shape, strides=strides, encoded_bytes=size)
    return Frame(role=role, block=CUT if role == FEATURE else 0, tensor=header), bytes(size)


def messages(method, session, frames):
    """As they go up."""
    if method == "Evaluate":
        for frame, _ in frames:
            frame.batch = 1
        return [serialize(Packet(pb.EvaluateRequest(session_id=session, frame=frame), data)) for frame, data in frames]
    for frame, _ in frames:
        frame.batch = 0
    up = [serialize(Packet(pb.TrainRequest(frame=frame), data)) for frame, data in frames]
    return [attach(session), *up]


INT64, FLOAT32, UINT8 = DataType.DATA_TYPE_INT64, DataType.DATA_TYPE_FLOAT32, DataType.DATA_TYPE_UINT8
LABELS = {
    "one number a gigabyte": claim(LABEL, [BATCH, 2**24], [0, 0], INT64, 1),
    "one byte a gigabyte": claim(LABEL, [BATCH, 2**27], [0, 0], UINT8, 1),
    "one number many dimensions": claim(LABEL, [BATCH, *[8] * 7], [0] * 8, INT64, 1),
    "a second dimension": claim(LABEL, [BATCH, 2**15], [2**15, 1], UINT8, BATCH * 2**15),
    "a gap of a gigabyte": claim(LABEL, [BATCH], [2**24], INT64, BATCH),
    "nine dimensions": claim(LABEL, [BATCH, *[1] * 8], [1] * 9, INT64, BATCH),
    "more samples than a batch": claim(LABEL, [BATCH + 1], [1], INT64, BATCH + 1),
    "no sample": claim(LABEL, [0], [1], INT64, 0),
    "no dimension": claim(LABEL, [], [], INT64, 1),
    "elements on top of each other": claim(LABEL, [BATCH, 4], [1, 1], INT64, 4 * BATCH),
    "floats for every pair": claim(LABEL, [BATCH, 2**16], [0, 1], FLOAT32, 2**16),
}
FEATURES_THAT_CANNOT_BE = {
    "a gap of a gigabyte": claim(FEATURE, [BATCH, FEATURES], [2**24, 1], FLOAT32, BATCH * FEATURES),
    "overlapping": claim(FEATURE, [BATCH, FEATURES], [1, 1], FLOAT32, BATCH * FEATURES),
    "one number a gigabyte": claim(FEATURE, [BATCH, 2**25], [0, 0], FLOAT32, 1),
    "another rank": claim(FEATURE, [BATCH, FEATURES, 1], [FEATURES, 1, 1], FLOAT32, BATCH * FEATURES),
    "another type": claim(FEATURE, [BATCH, FEATURES], [FEATURES, 1], INT64, BATCH * FEATURES),
    "fewer samples than labels": claim(FEATURE, [1, FEATURES], [FEATURES, 1], FLOAT32, FEATURES),
}


async def refused(trainer, method, loss, frames):
    """These frames are refused, and cost the trainer next to nothing."""
    process, address = trainer
    async with RawPeer(address) as peer:
        session = await peer.open(loss=loss)
        before = peak_bytes(process)
        end = await peer.streamed(method, messages(method, session, frames))
        assert end.code is grpc.StatusCode.INVALID_ARGUMENT, end
        assert len(end.details) < 400
        assert peak_bytes(process) - before < MOST_GROWTH_BYTES
        assert await peer.next_step(session) == 0
        await peer.close_session(session)


@pytest.mark.parametrize("method", ["Train", "Evaluate"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", OWN_LOSS])
@pytest.mark.parametrize("claimed", LABELS)
async def test_labels_that_claim_more_than_a_batch_has_are_refused(trainer, method, loss, claimed):
    feature = batch_packets(pb.TrainRequest, 0)[1:]
    frames = [LABELS[claimed], *((packet.message.frame, packet.payload) for packet in feature)]
    await refused(trainer, method, loss, frames)


@pytest.mark.parametrize("method", ["Train", "Evaluate"])
@pytest.mark.parametrize("claimed", FEATURES_THAT_CANNOT_BE)
async def test_features_that_claim_more_than_the_cut_has_are_refused(trainer, method, claimed):
    labels = batch_packets(pb.TrainRequest, 0)[0]
    frames = [(labels.message.frame, labels.payload), FEATURES_THAT_CANNOT_BE[claimed]]
    await refused(trainer, method, "cross_entropy", frames)


@pytest.mark.parametrize("method", ["Train", "Evaluate"])
async def test_labels_of_a_loss_of_ones_own_may_have_several_numbers_a_sample(trainer, method):
    _, address = trainer
    packets = batch_packets(pb.TrainRequest, 0)
    frames = [
        claim(LABEL, [BATCH, 6, 2], [12, 2, 1], INT64, BATCH * 12),
        *((packet.message.frame, packet.payload) for packet in packets[1:]),
    ]
    async with RawPeer(address) as peer:
        session = await peer.open(loss=OWN_LOSS)
        end = await peer.streamed(method, messages(method, session, frames))
        assert end.code is grpc.StatusCode.OK, end
        await peer.close_session(session)
