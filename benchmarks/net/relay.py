"""A link in user space: a TCP relay on loopback with rate, delay and faults in each direction. Needs no root.

Bytes, not packets: nothing is lost or reordered, and handshakes are not delayed. For tests of what the two sides do on
a slow or broken link; for measurements, `linked_namespaces` shapes packets in the kernel. Time is the event loop's.
Everything here belongs to the loop that opened the relay.
"""

import asyncio
import enum
import socket
import struct
from collections import deque
from types import TracebackType
from typing import Self

_BUFFER_BYTES = 128 * 1024
"""Largest backlog in one direction besides the bytes under way; beyond it the sender has to wait."""
_SOCKET_BUFFER_BYTES = 64 * 1024
"""Asked of the kernel for each of the relay's sockets, which would otherwise take in megabytes by themselves."""
_CHUNK_SECONDS = 0.002
_SMALLEST_CHUNK, _LARGEST_CHUNK = 1448, 16 * 1024
_LATENESS_SECONDS = 0.005
"""Lateness that a timer may have without lowering the rate; it also bounds the burst after a pause."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Fault(enum.Enum):
    """Faults of a link, by name."""

    DROP = "drop"
    """Reset every connection, at both ends; new ones are accepted."""
    FREEZE = "freeze"
    """Stop forwarding, the end of a stream included, and keep every connection open."""
    RESUME = "resume"
    """End FREEZE; what had waited is forwarded."""
    CORRUPT = "corrupt"
    """Flip one bit in the middle of the next data forwarded, once."""


class TokenBucket:
    """The times at which bytes may leave a link of a given rate. Pure: the time is the one that the caller gives.

    Kept as the time at which all that was reserved has left (the virtual scheduling form of the token bucket). Over any
    span of s seconds at most `rate * (s + lateness)` bytes leave, plus one reservation.
    """

    def __init__(self, bytes_per_second: float, lateness_seconds: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._lateness_seconds = lateness_seconds
        self._free_at = float("-inf")

    def reserve(self, count: int, now: float) -> float:
        """The time at which `count` bytes, offered now, have left; it may lie in the past by the lateness allowed."""
        self._free_at = max(self._free_at, now - self._lateness_seconds) + count / self.bytes_per_second
        return self._free_at


class Lane:
    """One direction of the link, shared by all connections through it."""

    def __init__(self, bits_per_second: float, one_way_delay_seconds: float) -> None:
        self.one_way_delay_seconds = one_way_delay_seconds
        self.forwarded_bytes = 0
        """Handed to the receiving side so far, over all connections."""
        self._bucket = TokenBucket(bits_per_second / 8, _LATENESS_SECONDS)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._corrupt_least_bytes: int | None = None

    @property
    def bits_per_second(self) -> float:
        """The rate, of payload; may be set at any time."""
        return self._bucket.bytes_per_second * 8

    @bits_per_second.setter
    def bits_per_second(self, value: float) -> None:
        self._bucket.bytes_per_second = value / 8

    def freeze(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def corrupt_next(self, least_bytes: int = 1) -> None:
        """Flip a bit in the next data of at least so many bytes: HTTP/2's own small frames have no checksum."""
        self._corrupt_least_bytes = least_bytes

    async def thawed(self) -> None:
        await self._flowing.wait()

    async def carry(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward one connection's bytes until the source ends its stream, then end the sink's."""
        cable = _Cable()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_in(source, cable))
            tasks.create_task(self._give_out(cable, sink))

    async def _take_in(self, source: socket.socket, cable: "_Cable") -> None:
        loop = asyncio.get_running_loop()
        while True:
            rate = self._bucket.bytes_per_second
            chunk_bytes = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, int(rate * _CHUNK_SECONDS)))
            data = await loop.sock_recv(source, chunk_bytes)
            if data:
                await _sleep_until(self._bucket.reserve(len(data), loop.time()))
            await cable.put(
                loop.time() + self.one_way_delay_seconds, data, rate * self.one_way_delay_seconds + _BUFFER_BYTES
            )
            if not data:
                return

    async def _give_out(self, cable: "_Cable", sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await cable.first()
            await _sleep_until(due)
            await self.thawed()
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            if self._corrupt_least_bytes is not None and len(data) >= self._corrupt_least_bytes:
                self._corrupt_least_bytes = None
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            await loop.sock_sendall(sink, data)
            self.forwarded_bytes += len(data)
            cable.remove_first()


class _Cable:
    """The bytes under way in one direction of one connection: (time due, bytes), oldest first; bounded in bytes.

    One task puts and one takes, and never do both wait: the one waits for room, the other for something to come.
    """

    def __init__(self) -> None:
        self._line: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Event()

    async def put(self, due: float, data: bytes, limit_bytes: float) -> None:
        """Wait until less than `limit_bytes` are held, then add; empty `data` is the end of the stream."""
        while self._held_bytes >= limit_bytes:
            self._changed.clear()
            await self._changed.wait()
        self._line.append((due, data))
        self._held_bytes += len(data)
        self._changed.set()

    async def first(self) -> tuple[float, bytes]:
        while not self._line:
            self._changed.clear()
            await self._changed.wait()
        return self._line[0]

    def remove_first(self) -> None:
        self._held_bytes -= len(self._line.popleft()[1])
        self._changed.set()


class Relay:
    """An async context: listens on `address` and joins each connection to the target through the two lanes.

    target_host, target_port: where the server listens, on this machine.
    one_way_delay_seconds: of each direction. Rates are of payload, in bits per second, and shared by all connections.
    port: where to listen; 0 takes a free one. A link that comes back does so where it was.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        uplink_bits_per_second: float = 1e9,
        downlink_bits_per_second: float = 1e9,
        one_way_delay_seconds: float = 0.0,
        port: int = 0,
    ) -> None:
        self.uplink = Lane(uplink_bits_per_second, one_way_delay_seconds)
        self.downlink = Lane(downlink_bits_per_second, one_way_delay_seconds)
        self._target = (target_host, target_port)
        self._listener = socket.socket()
        self._listen_port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port that the client connects to, on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """The same as host:port."""
        return f"127.0.0.1:{self.port}"

    def inject(self, fault: Fault, *lanes: Lane) -> None:
        """Make it happen now. lanes: where FREEZE, RESUME and CORRUPT act, both when none is named; DROP hits all."""
        for lane in lanes or (self.uplink, self.downlink):
            match fault:
                case Fault.FREEZE:
                    lane.freeze()
                case Fault.RESUME:
                    lane.resume()
                case Fault.CORRUPT:
                    lane.corrupt_next()
                case Fault.DROP:
                    for connection in self._connections:
                        connection.cancel()

    async def __aenter__(self) -> Self:
        _narrow(self._listener)  # before listening: accepted sockets inherit it
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._listen_port))
        self._listener.listen()
        self._accepting = asyncio.create_task(self._accept())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._accepting is not None
        ending = [self._accepting, *self._connections]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._listener)
            connection = asyncio.create_task(self._join(client))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _join(self, client: socket.socket) -> None:
        server = socket.socket()
        _narrow(server)
        reset = True
        try:
            await asyncio.get_running_loop().sock_connect(server, self._target)
            async with asyncio.TaskGroup() as lanes:
                lanes.create_task(self.uplink.carry(client, server))
                lanes.create_task(self.downlink.carry(server, client))
            reset = False
        except* OSError:
            await self.uplink.thawed()  # over a frozen link nobody learns that the other end is gone
            await self.downlink.thawed()
        finally:
            for end in (client, server):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                end.close()


def _narrow(end: socket.socket) -> None:
    """Non-blocking, prompt, and with little room in the kernel."""
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)


async def _sleep_until(time: float) -> None:
    wait = time - asyncio.get_running_loop().time()
    if wait > 0:
        await asyncio.sleep(wait)
