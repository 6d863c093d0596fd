"""Both ends of a stream in one process and in virtual time: nothing waits for a clock, so a slow link costs no time.

Everything runs on one loop, workers included, so an order of events is decided by the delays alone and comes again.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from shared.codec import aligned_buffer
from shared.concurrency.threads import WorkerThread
from shared.transport.stream import duplex
from shared.transport.stream.credits import ReceiveLedger
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor
from shared.transport.stream.packets import Packet, PacketChannel
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from shared.wire.isthmus.v1.tensor_pb2 import Frame

T = TypeVar("T")
MESSAGE_BYTES = 60
"""The bytes of a message besides its payload."""


class VirtualSelector(selectors.DefaultSelector):
    """Decides when the time moves on. start_seconds: what the clock shows first."""

    def __init__(self, start_seconds: float) -> None:
        super().__init__()
        self.now = start_seconds


class _Timers(VirtualSelector):
    """Instead of waiting for a timer, moves the time on."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("a standstill: every task waits for another")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as its selector says."""

    def __init__(self, selector: VirtualSelector) -> None:
        self._virtual = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function to its end, without sockets and threads, in virtual time.

    Time passes as soon as nothing else can happen; `time.monotonic` and the acks' clock show it.
    """
    loop = VirtualLoop(_Timers(1000.0))

    def nanoseconds() -> int:
        return round(loop.time() * 1e9)

    async def call() -> T:
        return await main()

    with (
        patch("time.monotonic", loop.time),
        patch("time.monotonic_ns", nanoseconds),
        patch.object(duplex, "ReceiveLedger", partial(ReceiveLedger, monotonic_nanoseconds=nanoseconds)),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(call())


class InlineWorker(WorkerThread):
    """Calls on the loop itself, one after the other in the order of giving, each taking as long as `seconds` says."""

    def __init__(self, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        async with self._turn:
            before, after = self._seconds(), self._seconds()
            await asyncio.sleep(before)
            result = function(*args, **kwargs)
            await asyncio.sleep(after)
            return result

    @property
    def is_wanted(self) -> bool:
        """Always: each call is one piece of work, and takes its time."""
        return True

    def close(self) -> None:
        """There is nothing to end."""


class Wire:
    """One direction of a link: a rate, a delay, and a sender's buffer in front of it; keeps the order.

    jitter: seconds more than the delay, drawn for every message. write_seconds: how late a write returns after the packet
    was taken, drawn too. burst_bytes: what a token bucket lets through at once after a pause. buffer_bytes: what the
    sender's side takes in before a write has to wait.
    """

    def __init__(
        self,
        bits_per_second: float,
        delay_seconds: float = 0.0,
        *,
        jitter: Callable[[], float] = lambda: 0.0,
        write_seconds: Callable[[], float] | None = None,
        burst_bytes: int = 0,
        buffer_bytes: int = 64 * 1024,
    ) -> None:
        self.bits_per_second = bits_per_second
        self.delay_seconds = delay_seconds
        self.stalled_until = 0.0
        """Nothing leaves before this time."""
        self._burst_bytes = burst_bytes
        self._buffer_bytes = buffer_bytes
        self._free_at = float("-inf")
        self.delivered_bytes = 0
        """Payload bytes that have arrived."""
        self.delivered_messages = 0
        self._jitter = jitter
        self._write_seconds = write_seconds
        self._buffered: deque[Packet[Any] | None] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Event()
        self._under_way: asyncio.Queue[tuple[float, Packet[Any] | None]] = asyncio.Queue()
        self._arrived: asyncio.Queue[Packet[Any] | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._transmit()), asyncio.create_task(self._deliver())]

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait in front of the link."""
        return self._held_bytes

    async def write(self, packet: Packet[Any]) -> None:
        """Wait for room in the buffer, then hand the packet over. A payload is copied, as a socket would."""
        payload = b"".join((packet.payload, *packet.rest))
        size = len(payload) + MESSAGE_BYTES
        while self._buffered and self._held_bytes + size > self._buffer_bytes:
            self._changed.clear()
            await self._changed.wait()
        message = type(packet.message)()
        message.CopyFrom(packet.message)
        self._buffered.append(Packet(message, payload))
        self._held_bytes += size
        self._changed.set()
        if self._write_seconds is not None:
            await asyncio.sleep(self._write_seconds())

    def end(self) -> None:
        """Nothing more comes."""
        self._buffered.append(None)
        self._changed.set()

    async def read(self) -> Packet[Any] | None:
        """The next packet that has arrived; None at the end."""
        return await self._arrived.get()

    async def _transmit(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._buffered:
                self._changed.clear()
                await self._changed.wait()
            packet = self._buffered[0]
            size = 0 if packet is None else len(packet.payload) + MESSAGE_BYTES
            byte_seconds = 8 / self.bits_per_second
            begin = max(loop.time(), self.stalled_until)
            self._free_at = max(self._free_at, begin - self._burst_bytes * byte_seconds) + size * byte_seconds
            await asyncio.sleep(max(self._free_at, begin) - loop.time())
            self._buffered.popleft()
            self._held_bytes -= size
            self._changed.set()
            self._under_way.put_nowait((loop.time() + self.delay_seconds + self._jitter(), packet))

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, packet = await self._under_way.get()
            await asyncio.sleep(max(due - loop.time(), 0.0))
            self.delivered_bytes += 0 if packet is None else len(packet.payload)
            self.delivered_messages += packet is not None
            self._arrived.put_nowait(packet)


def _accept_all(_frame: Frame, _key: TensorKey) -> None:
    pass


def _ignore(_tensor: WireTensor, _seconds: float, _receiver_nanoseconds: int) -> None:
    pass


def edge_end(
    up: Wire,
    down: Wire,
    accept: Callable[[Frame, TensorKey], None] = _accept_all,
    on_delivered: Callable[[WireTensor, float, int], None] = _ignore,
    chunk_bytes: int = 1 << 20,
) -> Duplex[LinkMessage, LinkMessage]:
    """The edge's end of a stream over two wires."""
    assembler = Assembler(accept, aligned_buffer)
    return Duplex(LinkMessage, PacketChannel(down.read, up.write), assembler, chunk_bytes, 1 << 26, on_delivered)


def cloud_end(
    up: Wire, down: Wire, accept: Callable[[Frame, TensorKey], None] = _accept_all, chunk_bytes: int = 1 << 20
) -> Duplex[LinkMessage, LinkMessage]:
    """The trainer's end."""
    assembler = Assembler(accept, aligned_buffer)
    return Duplex(LinkMessage, PacketChannel(up.read, down.write), assembler, chunk_bytes, 1 << 26, _ignore)
