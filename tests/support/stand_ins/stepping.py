"""An agent that does nothing but steps: how many a trainer does for it, and how long the longest of them took."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import torch

from shared.codec import aligned_buffer, codec_by_name
from shared.placement import AGENT
from shared.tensor_wire import to_wire
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor
from shared.transport.stream.packets import PacketChannel, deserializer, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkOpening, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.peers.strangers import path_of
from tests.support.wire import BATCH, BLOCKS, CLASSES, CUT, RawPeer

OUTPUTS = 64
"""The outputs of the first block of the models that are stepped through."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The count and the times of the steps in a while."""

    steps: int
    seconds: float
    longest_seconds: float

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps


class Stepper:
    """An open link, with K = 0 at cut 1."""

    def __init__(self, stream: Duplex[LinkMessage, LinkMessage], session: str) -> None:
        self.session = session
        self._stream = stream
        self._number = 0
        raw = codec_by_name("raw")
        self._labels = raw.encode(torch.arange(BATCH) % CLASSES)
        self._feature = codec_by_name("fp32").encode(torch.rand(BATCH, OUTPUTS))

    async def step(self) -> None:
        """One, to its gradient. The report may come with the next one's."""
        labels, feature = (self._labels, Role.ROLE_LABEL, BLOCKS), (self._feature, Role.ROLE_FEATURE, CUT)
        await self._stream.send(
            *(
                to_wire(encoded, TensorKey(self._number, role, block), 0, BATCH)
                for encoded, role, block in (labels, feature)
            )
        )
        tensors: Sequence[WireTensor] = ()
        while not tensors:
            event = await self._stream.receive()
            assert event is not None, "the trainer ended the stream"
            _, tensors = event
        self._number += 1

    async def until(self, ended: "asyncio.Future[Any]", least: int = 1) -> Pace:
        """Steps until something has ended, and this many at least."""
        begun = time.perf_counter()
        taken: list[float] = []
        while len(taken) < least or not ended.done():
            started = time.perf_counter()
            await self.step()
            taken.append(time.perf_counter() - started)
        return Pace(len(taken), time.perf_counter() - begun, max(taken))

    async def during(self, seconds: float) -> Pace:
        """Steps for so long."""
        return await self.until(asyncio.ensure_future(asyncio.sleep(seconds)))


@asynccontextmanager
async def stepping(peer: RawPeer, address: str, model: pb.Model, **changes: Any) -> AsyncIterator[Stepper]:
    """A new session of `model`, whose blocks are three, joined, linked and ready for steps."""
    session = await peer.open_and_join(model=model, **changes)
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        method: Any = channel.stream_stream(
            path_of("Link"), request_serializer=serialize, response_deserializer=deserializer(LinkMessage)
        )
        call = method()

        async def read() -> Any:
            packet = await call.read()
            return None if packet is grpc.aio.EOF else packet

        stream: Duplex[LinkMessage, LinkMessage] = Duplex(
            LinkMessage,
            PacketChannel(read, call.write),
            assembler=Assembler(lambda *_: None, aligned_buffer),
            largest_chunk_bytes=64 * 1024,
            window_bytes=1 << 20,
            note_delivered=lambda *_: None,
        )
        told = LinkOpening(protocol_version=PROTOCOL_VERSION, session_id=session, session_term=1, worker=AGENT)
        position = LinkPosition(awaited=[Awaited(role=Role.ROLE_ERROR_GRADIENT, block=CUT)])
        for begins in (LinkMessage(opening=told), LinkMessage(position=position)):
            await stream.write(begins)
            await stream.receive()
        yield Stepper(stream, session)
        call.cancel()
