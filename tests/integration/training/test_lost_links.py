"""Links that are lost at any packet, in virtual time: each side gets what it lacks, nothing is done twice, no bit changes."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_trainer.rpc.incoming_batches import IncomingBatches
from edge_agent.training.recovery import Reattached
from shared.client.stream_call import Stream
from shared.codec import FeedbackMode, aligned_buffer
from shared.errors import IsthmusError, UnreachableError
from shared.transport.stream.channel import PacketChannel, loopback
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Position, TrainRequest, TrainResponse
from tests.integration.training.test_pipeline import plain_state
from tests.support.plain import assert_same_bits
from tests.support.virtual import run_virtually
from tests.support.virtual_split import LIMITS, VirtualSplit, any_delays

pytestmark = pytest.mark.usefixtures("one_thread")
CHUNK_BYTES = 48
"""A feature and its labels take several packets, so that a link can be lost in the middle of each."""


class LossyLink:
    """Both ends of a stream in this process; each stream is lost after as many packets, in and out, as `losses` says."""

    def __init__(self, split: VirtualSplit, losses: Iterator[int]) -> None:
        self._split = split
        self._losses = losses
        self.streams = 0
        self.stream = self._attach(None)

    def _attach(self, position: Position | None) -> Stream:
        session, self.streams = self._split.session, self.streams + 1
        near, far = loopback()
        left = next(self._losses)

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise UnreachableError("the link was lost")

        async def read():
            packet = await near.read()
            count()
            return packet

        async def write(packet):
            count()
            await near.write(packet)

        incoming = IncomingBatches(session, TensorKey(session.training.next_step, Role.ROLE_LABEL), LIMITS.tensor_bytes)
        cloud = Duplex(
            TrainResponse, far, Assembler(incoming.accept, aligned_buffer), CHUNK_BYTES, 1 << 20, lambda *_: None
        )
        self._end = near.end
        self._serving = asyncio.create_task(self._split.serve(cloud, incoming, position))
        assembler = Assembler(self._split.window.accept, aligned_buffer)
        return Duplex(TrainRequest, PacketChannel(read, write), assembler, CHUNK_BYTES, 1 << 20, lambda *_: None)

    async def reattach(self, failure: IsthmusError) -> Reattached:
        """What the handshake of both sides comes to."""
        if not isinstance(failure, UnreachableError):
            raise failure
        self._serving.cancel()
        await asyncio.wait({self._serving})
        training, at = self._split.training, self._split.window.position
        position = Position(gradient_step=at.gradient_step, report_step=at.report_step)
        assert max(at.gradient_step, at.report_step) <= training.next_step <= at.forward_step, (
            "neither side is ahead of the other"
        )
        assert training.answers.cover(position, training.next_step, gradients_return=training.gradients_return)
        self._split.window.resume(training.next_step)
        self._split.deployment.note_in_force(training.deployment)
        self.stream = self._attach(position)
        return Reattached()

    async def end(self) -> None:
        """No more comes."""
        await self._end()
        await self._serving


@settings(max_examples=60, deadline=None)
@given(
    delays=any_delays(),
    losses=st.lists(st.integers(0, 40), max_size=8),
    steps=st.integers(1, 12),
    limit=st.integers(0, 4),
    codec=st.sampled_from(["fp32", "uniform8"]),
    change=st.integers(0, 12),
)
def test_what_either_side_lacks_is_sent_again_and_nothing_is_done_twice(delays, losses, steps, limit, codec, change):
    split: VirtualSplit
    link: LossyLink

    def on_forward(step: int) -> None:
        if step == change:
            split.deployment.change(staleness=limit + 1)

    async def main() -> None:
        nonlocal split, link
        split = VirtualSplit(
            delays=delays, feedback=FeedbackMode.BATCH, deployment={"staleness": limit, "codec": codec}
        )
        split.on_forward = on_forward
        link = LossyLink(split, itertools.chain(losses, itertools.repeat(1 << 30)))
        async with split.batches(steps) as batches:
            assert await split.pipeline.run(link, batches, steps) is None
        await link.end()

    run_virtually(main)
    record, expected = split.record, list(range(steps))
    for done in (record.cloud, record.updated, record.reported, record.gradients_down, list(record.staleness)):
        assert done == expected, "each step once, and in order"
    for what in ("forward", "backward"):
        assert [step for kind, step in record.edge if kind == what] == expected
    assert record.most_in_flight <= limit + 2
    assert (split.window.in_flight, split.window.owed()) == (0, None)
    assert_same_bits(plain_state(record, "replay", FeedbackMode.BATCH), split.state)


def test_a_run_gets_on_over_streams_of_a_few_packets_each():

    async def main() -> int:
        split = VirtualSplit(deployment={"staleness": 2})
        link = LossyLink(split, itertools.repeat(25))
        async with split.batches(6) as batches:
            assert await split.pipeline.run(link, batches, 6) is None
        await link.end()
        return link.streams

    assert run_virtually(main) > 2
