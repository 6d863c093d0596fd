"""An HTTP proxy that opens a way for CONNECT: to one port of this machine, whatever host it is asked for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OPENED = "200 Connection established"


@dataclass
class ConnectProxy:
    """A proxy that listens. leads_to: its port of this machine. answer: the status line that it gives."""

    leads_to: int
    answer: str = OPENED
    port: int = 0
    asked: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    """The heads of the requests."""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            self.asked.put_nowait(await reader.readuntil(b"\r\n\r\n"))
            writer.write(f"HTTP/1.1 {self.answer}\r\n\r\n".encode())
            if self.answer == OPENED:
                there, here = await asyncio.open_connection("127.0.0.1", self.leads_to)
                async with asyncio.TaskGroup() as carrying:
                    carrying.create_task(carried(reader, here))
                    carrying.create_task(carried(there, writer))
        writer.close()


async def carried(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the source ends."""
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def connect_proxy(leads_to: int, answer: str = OPENED) -> AsyncIterator[ConnectProxy]:
    """A proxy that listens meanwhile."""
    proxy = ConnectProxy(leads_to, answer)
    server = await asyncio.start_server(proxy.take, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
