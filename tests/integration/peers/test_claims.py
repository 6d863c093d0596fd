"""A tensor that is announced is judged before it costs anything: what a few bytes claim takes neither memory nor time."""

from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.running import trainer_process
from tests.support.wire import BATCH, BLOCKS, CUT, FEATURES, RawPeer, batch_packets

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
    block = CUT if role == FEATURE else BLOCKS
    return Frame(role=role, block=block, tensor=header, batch_samples=BATCH), bytes(size)


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


@asynccontextmanager
async def opened(address, purpose, loss):
    """A peer with a new session, and which evaluation its link is for."""
    async with RawPeer(address) as peer:
        session = await peer.open_and_join(loss=loss)
        if purpose == "training":
            yield peer, session, 0
        else:
            async with peer.evaluating(session):
                yield peer, session, 1
        await peer.close_session(session)


def messages(frames):
    """As they go up."""
    return [serialize(Packet(LinkMessage(frames=[frame]), data)) for frame, data in frames]


async def refused(trainer, purpose, loss, frames):
    """These frames are refused, and cost the trainer next to nothing."""
    process, address = trainer
    async with opened(address, purpose, loss) as (peer, session, evaluation):
        before = peak_bytes(process)
        end = await peer.linked(session, messages(frames), evaluation=evaluation)
        assert end.code is grpc.StatusCode.INVALID_ARGUMENT, end
        assert len(end.details) < 400
        assert peak_bytes(process) - before < MOST_GROWTH_BYTES
        assert await peer.next_step(session) == 0


PURPOSES = pytest.mark.parametrize("purpose", ["training", "evaluation"])


@PURPOSES
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", OWN_LOSS])
@pytest.mark.parametrize("claimed", LABELS)
async def test_labels_that_claim_more_than_a_batch_has_are_refused(trainer, purpose, loss, claimed):
    feature = batch_packets(0)[1:]
    frames = [LABELS[claimed], *((packet.message.frames[0], packet.payload) for packet in feature)]
    await refused(trainer, purpose, loss, frames)


@PURPOSES
@pytest.mark.parametrize("claimed", FEATURES_THAT_CANNOT_BE)
async def test_features_that_claim_more_than_the_cut_has_are_refused(trainer, purpose, claimed):
    labels = batch_packets(0)[0]
    frames = [(labels.message.frames[0], labels.payload), FEATURES_THAT_CANNOT_BE[claimed]]
    await refused(trainer, purpose, "cross_entropy", frames)


@PURPOSES
async def test_labels_of_a_loss_of_ones_own_may_have_several_numbers_a_sample(trainer, purpose):
    _, address = trainer
    packets = batch_packets(0)
    frames = [
        claim(LABEL, [BATCH, 6, 2], [12, 2, 1], INT64, BATCH * 12),
        *((packet.message.frames[0], packet.payload) for packet in packets[1:]),
    ]
    async with opened(address, purpose, OWN_LOSS) as (peer, session, evaluation):
        end = await peer.linked(session, messages(frames), evaluation=evaluation)
        assert end.code is grpc.StatusCode.OK, end
