"""One request of HTTP/1.1 and the answer to it: what is read is bounded, and what is not understood is refused.

Knows nothing of sockets' lives and of what is asked for.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

MOST_HEAD_BYTES = 16 * 1024
MOST_BODY_BYTES = 64 * 1024
"""Largest request line with its headers, and largest body: a placement of thousands of blocks has room in it."""
_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t]*)")


class BadRequestError(Exception):
    """A request that is answered with this status, after which nothing more is read from its connection."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was read whole."""

    method: str
    path: str
    """Path with its query, as it was sent."""
    headers: Mapping[str, str]
    """Values by name in small letters; no name is given twice."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""

    @property
    def head(self) -> bytes:
        """Return the status line and the headers, as they are sent before the body."""
        lines = {**self.headers, "Content-Type": self.content_type, "Content-Length": str(len(self.body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n{text}\r\n".encode("ascii")


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request of a connection; None where its peer has ended it.

    reader: its limit is MOST_HEAD_BYTES. Raises BadRequestError.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        sentence = f"the headers have more than {MOST_HEAD_BYTES} bytes"
        raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, sentence) from None
    request = _parsed(head)
    try:
        body = await reader.readexactly(_body_bytes(request.headers))
    except asyncio.IncompleteReadError:
        return None
    return Request(request.method, request.path, request.headers, body)


def _parsed(head: bytes) -> Request:
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    if (asked := _LINE.fullmatch(line)) is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "the first line is none of HTTP/1.1")
    headers: dict[str, str] = {}
    for each in lines:
        if (header := _HEADER.fullmatch(each)) is None or (name := header[1].lower()) in headers:
            raise BadRequestError(HTTPStatus.BAD_REQUEST, "a header is given twice or cannot be read")
        headers[name] = header[2].strip()
    return Request(asked[1], asked[2], headers)


def _body_bytes(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequestError(HTTPStatus.LENGTH_REQUIRED, "a body needs its length (Content-Length)")
    length = headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,16}", length):
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "Content-Length is no number of bytes")
    if int(length) > MOST_BODY_BYTES:
        sentence = f"the body has {length} bytes, and at most {MOST_BODY_BYTES} are taken"
        raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
    return int(length)
