"""Connections of browsers: how many there may be, how long each may keep us waiting, and what becomes of its requests.

All of it is on the event loop, without a thread. A connection waits for its peer in one of a number of places, of which the
oldest is given up for a new one, and holds a request or an answer at most. Calls that take long are bounded by the gate.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import structlog

from shared.transport.auth.places import Places
from shared.transport.rpc.status import StatusError
from shared.web.requests import MOST_HEAD_BYTES, BadRequestError, Request, Response, read_request

_log = structlog.get_logger(__name__)
MOST_WAITING = 64
"""Connections that wait for their peer to send or to read, at one time."""
WAIT_SECONDS = 10.0
"""Longest time for a connection's next request, with the handshake before the first, and for its answer to be read."""
_AT_ONCE = struct.pack("ii", 1, 0)
_ACCEPT_AGAIN_SECONDS = 1.0
"""Delay after a connection could not be accepted, as where no descriptor is left."""


class BrowserConnections:
    """Connections that are answered by one function."""

    def __init__(
        self,
        answer: Callable[[Request, str], Awaitable[Response]],
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        """answer: called with a request and its peer's address in gRPC's form. tls: asked before each handshake."""
        self._answer = answer
        self._tls = tls
        self._places = Places(MOST_WAITING, WAIT_SECONDS)

    async def accept(self, listening: socket.socket) -> None:
        """Serve the connections that come to a socket, until this is cancelled; then all of them end."""
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError as cause:
                    _log.warning("no connection to the page can be accepted", reason=cause.strerror)
                    await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                task = loop.create_task(self._serve(connection, _peer(address)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        transport: asyncio.WriteTransport | None = None
        try:
            async with self._places.place():
                reader, writer = await self._opened(connection)
                transport = writer.transport
                request = await _read(reader)
            while request is not None:
                response = await self._answered(request, peer, reader)
                closes = (
                    isinstance(request, BadRequestError) or request.headers.get("connection", "").lower() == "close"
                )
                async with self._places.place():
                    writer.write(response.head + response.body)
                    await writer.drain()
                    request = None if closes else await _read(reader)
        except (OSError, StatusError):  # lost, or too slow for its place
            pass
        finally:
            if transport is None:
                connection.close()
            else:
                if transport.get_write_buffer_size():  # the kernel keeps nothing of it, either
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                transport.abort()

    async def _opened(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        reader = asyncio.StreamReader(limit=MOST_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls()}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **tls)
        transport.set_write_buffer_limits(0)  # so that an answer counts as sent when the kernel has all of it
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _answered(self, request: Request | BadRequestError, peer: str, reader: asyncio.StreamReader) -> Response:
        """The answer to a request; the call behind it ends with the connection. Raises ConnectionError then."""
        if isinstance(request, BadRequestError):
            return Response(request.status, f"{request}\n".encode(), headers={"Connection": "close"})
        answer, more = asyncio.ensure_future(self._answer(request, peer)), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answer, more}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionAbortedError("the peer has gone, or has sent more before its answer came")
            return answer.result()
        except OSError:
            raise
        except Exception:
            _log.exception("a request to the page failed", path=request.path)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"a defect\n")
        finally:
            answer.cancel()
            more.cancel()
            await asyncio.gather(answer, more, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Request | BadRequestError | None:
    try:
        return await read_request(reader)
    except BadRequestError as bad:
        return bad


def _peer(address: Any) -> str:
    host, port, *_ = address
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
