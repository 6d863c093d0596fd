"""Production links between workers in one process, that may be lost at any packet."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from shared.codec import aligned_buffer
from shared.concurrency.tasks import gathered
from shared.errors import UnreachableError
from shared.placement import Link
from shared.runtime.link_end import LinkStream
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, key_of
from shared.transport.stream.packets import PacketChannel
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from tests.support.loopback import loopback
from tests.support.virtual import Wire

CHUNK_BYTES = 256
"""A feature takes several packets, so that a link can be lost in the middle of it."""
Seconds = Callable[[], float]
Channel = PacketChannel[LinkMessage, LinkMessage]


class Linking:
    """Keeps workers linked, over links that take no time or over wires."""

    def __init__(
        self,
        seconds: Seconds = lambda: 0.0,
        losses: Iterable[int] = (),
        wires: Callable[[str, str], Wire] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """seconds: before each packet. losses: after how many packets each stream is lost, one after the other; then none is.

        wires: by the sender and the receiver.
        """
        self._seconds = seconds
        self._losses = iter(losses)
        self._wires = wires
        self._chunk_bytes = chunk_bytes
        self.streams = 0
        self.counted: Callable[[], None] = lambda: None
        """Called before each packet."""
        self.dialled: Callable[[PlacementExecutor, PlacementExecutor], None] = lambda _near, _far: None
        """Called before each stream with its two ends."""
        self._mended: dict[str, asyncio.Event] = {}
        self._lost: dict[Link, asyncio.Event] = {}

    def keep_all(
        self, executors: Mapping[str, PlacementExecutor], linked: Iterable[Link]
    ) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that keep up the links between these executors, for as long as they are awaited."""
        return [self._keep(executors, link) for link in linked]

    def cut(self, worker: str) -> None:
        """Lose all streams of a worker, and have none until `mend`."""
        self._mended[worker] = asyncio.Event()
        for link, lost in self._lost.items():
            if worker in link:
                lost.set()

    def mend(self, worker: str) -> None:
        """Have streams to a worker again."""
        self._mended.pop(worker).set()

    async def _keep(self, executors: Mapping[str, PlacementExecutor], link: Link) -> None:
        while True:
            for worker in link:
                while (mended := self._mended.get(worker)) is not None:
                    await mended.wait()
            near, far = executors[link.dialer], executors[link.listener]
            self.dialled(near, far)
            self._lost[link] = lost = asyncio.Event()
            here, there = self._channels(near.worker, far.worker)
            left = next(self._losses, None)
            self.streams += 1
            try:
                await gathered(
                    near.serve(far.worker, self._stream(near, far, here, lost, left)),
                    far.serve(near.worker, self._stream(far, near, there, lost, left)),
                )
            except UnreachableError:
                continue

    def _channels(self, near: str, far: str) -> tuple[Channel, Channel]:
        if self._wires is None:
            return loopback()
        up, down = self._wires(near, far), self._wires(far, near)
        return PacketChannel(down.read, up.write), PacketChannel(up.read, down.write)

    def _stream(
        self,
        executor: PlacementExecutor,
        peer: PlacementExecutor,
        channel: Channel,
        lost: asyncio.Event,
        left: int | None,
    ) -> LinkStream:
        async def survive(work):
            nonlocal left
            self.counted()
            if left is not None:
                left -= 1
                if left < 0:
                    lost.set()
            doing, losing = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
            try:
                await asyncio.wait({doing, losing}, return_when=asyncio.FIRST_COMPLETED)
                if lost.is_set():
                    raise UnreachableError("the link was lost")
                return doing.result()
            finally:
                for task in (doing, losing):
                    task.cancel()

        async def write(packet):
            await asyncio.sleep(self._seconds())
            await survive(channel.write(packet))

        return Duplex(
            LinkMessage,
            PacketChannel(lambda: survive(channel.read()), write),
            Assembler(executor.ends[peer.worker].accept, aligned_buffer),
            self._chunk_bytes,
            1 << 20,
            lambda *_: None,
        )


def still_stream() -> LinkStream:
    """A stream by which nothing ever comes."""
    here, _ = loopback()
    return Duplex(LinkMessage, here, Assembler(lambda *_: None, aligned_buffer), CHUNK_BYTES, 1 << 20, lambda *_: None)


def announce(end, frame):
    """Have the peer of a link's end announce a tensor, as its assembler does."""
    end.accept(frame, key_of(frame))
