"""A browser as a test has it, byte for byte, and a control service of which nothing is behind it."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog

from shared.config import WebConfig
from shared.control.serving import control_handlers
from shared.web import serving_page
from shared.wire.isthmus.v1 import control_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["EdgeControlService"]
EVIL = "https://evil.example"


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def get(path="/", **headers):
    return _head("GET", path, headers)


def post(method, data="{}", **headers):
    """A call as the page makes it, unless headers say otherwise; None leaves one out."""
    body = data if isinstance(data, bytes) else data.encode()
    typical = {"content-type": "application/json", "content-length": len(body)}
    return _head("POST", f"/{SERVICE.full_name}/{method}", {**typical, **headers}) + body


def _head(method, path, headers):
    lines = {"host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
    given = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{given}\r\n".encode("latin-1")


async def answer(reader):
    """Read one answer; None where the connection was closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *lines = head.decode().split("\r\n")[:-2]
    headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
    return Answered(int(line.split()[1]), headers, await reader.readexactly(int(headers["content-length"])))


class Page:
    """A served page, as its clients reach it."""

    def __init__(self, port, trust=None):
        self.port = port
        self._trust = trust

    async def connected(self):
        return await asyncio.open_connection("localhost", self.port, ssl=self._trust)

    async def ask(self, request):
        """The answer to bytes on a connection of their own."""
        reader, writer = await self.connected()
        try:
            writer.write(request)
            return await answer(reader)
        finally:
            writer.transport.abort()


class NothingBehind:
    """Answers every call with an empty message, and remembers it."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        method = next(each for each in SERVICE.methods if each.name.lower() == name.replace("_", ""))

        async def called(request):
            self.calls.append((method.name, request))
            return getattr(pb, method.output_type.name)()

        return called


@asynccontextmanager
async def served(behind, trust=None, **keys):
    """A page of the service that is `behind`."""
    handlers = control_handlers(SERVICE, behind, "the agent", lambda _code: None)
    with structlog.testing.capture_logs() as logs:
        async with serving_page(WebConfig(listen="127.0.0.1:0", **keys), SERVICE, handlers):
            port = next(
                int(entry["address"].rstrip("/").rpartition(":")[2]) for entry in logs if entry["event"] == "page"
            )
            yield Page(port, trust)


def trusting(authority):
    return ssl.create_default_context(cafile=authority)
