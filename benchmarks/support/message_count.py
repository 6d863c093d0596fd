"""Count of the gRPC messages that two processes send each other, on the wire, whatever language they are written in.

A relay between them reads the frames of HTTP/2 as they pass (RFC 9113, 4.1) and the lengths that gRPC puts before its messages.
It takes time of its own, so what it carries is not timed.
"""

import socket
import threading
from collections import defaultdict
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Bytes that a client sends before its first frame."""
_FRAME_HEADER_BYTES, _MESSAGE_HEADER_BYTES = 9, 5
_DATA = 0
_READ_BYTES = 1 << 18


class _Stream:
    """The messages in the DATA frames of one stream."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0

    def add(self, data: memoryview) -> int:
        """Return the number of messages that begin in this part."""
        begun = 0
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self._left -= taken
            else:
                taken = min(_MESSAGE_HEADER_BYTES - len(self._header), len(data))
                self._header += data[:taken]
                if len(self._header) == _MESSAGE_HEADER_BYTES:
                    begun += 1
                    self._left, self._header = int.from_bytes(self._header[1:], "big"), b""
            data = data[taken:]
        return begun


class MessageCount:
    """Counts the messages of one direction of one connection."""

    def __init__(self, preface_bytes: int = 0) -> None:
        """preface_bytes: what comes before the first frame."""
        self.messages = 0
        self._skip = preface_bytes
        self._header = b""
        self._streams: dict[int, _Stream] = defaultdict(_Stream)
        self._stream: _Stream | None = None

    def add(self, data: memoryview) -> None:
        """So much has passed."""
        while data:
            if self._skip:
                taken = min(self._skip, len(data))
                self._skip -= taken
                if self._stream is not None:
                    self.messages += self._stream.add(data[:taken])
            else:
                taken = min(_FRAME_HEADER_BYTES - len(self._header), len(data))
                self._header += data[:taken]
                if len(self._header) == _FRAME_HEADER_BYTES:
                    stream = int.from_bytes(self._header[5:], "big")
                    self._stream = self._streams[stream] if self._header[3] == _DATA else None
                    self._skip, self._header = int.from_bytes(self._header[:3], "big"), b""
            data = data[taken:]


class CountingRelay:
    """Passes connections on to a server, while it is entered; `address` is where it listens."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._up: list[MessageCount] = []
        self._down: list[MessageCount] = []
        self._threads: list[threading.Thread] = []

    @property
    def messages(self) -> tuple[int, int]:
        """To the server and from it, on all connections; complete once those have ended."""
        return sum(one.messages for one in self._up), sum(one.messages for one in self._down)

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:  # those that are begun meanwhile included
            thread.join()
        self._listening.close()

    def _begin(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:  # it listens no more
                return
            far = socket.create_connection(self._target)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._up.append(MessageCount(len(PREFACE)))
            self._down.append(MessageCount())
            self._begin(_pump, near, far, self._up[-1])
            self._begin(_pump, far, near, self._down[-1])


def _pump(source: socket.socket, to: socket.socket, count: MessageCount) -> None:
    try:
        while data := source.recv(_READ_BYTES):
            count.add(memoryview(data))
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:  # one of the two is gone
        source.close()
        to.close()
