"""Plain TCP over a link: how fast it is, what a round trip takes, how long one message takes.

The yardstick for everything that runs over gRPC. `probe.py serve ADDRESS` answers `probe.py WHAT ADDRESS ...`, which
prints one number. Imports nothing of ours, so that it starts at once and can run on a slow device.
"""

import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from socketserver import BaseRequestHandler, ThreadingTCPServer

_PORT = 5201
_BLOCK = bytes(64 * 1024)
_HEADER = struct.Struct("!cd")
"""Request of the client: `u`pload, `d`ownload for so many seconds, or `e`cho of messages of so many bytes."""
_RESULT = struct.Struct("!d")


def send_for(connection: socket.socket, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(_BLOCK)
    connection.shutdown(socket.SHUT_WR)


def receive_rate(connection: socket.socket) -> float:
    """Bits per second over the later two thirds of the time in which bytes came: past the slow start."""
    arrivals: list[tuple[float, int]] = []
    total = 0
    while data := connection.recv(256 * 1024):
        total += len(data)
        arrivals.append((time.monotonic(), total))
    first, last = arrivals[0][0], arrivals[-1][0]
    begin, before = next(mark for mark in arrivals if mark[0] >= first + (last - first) / 3)
    return (total - before) * 8 / (last - begin)


class Handler(BaseRequestHandler):
    def handle(self) -> None:
        connection: socket.socket = self.request
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted, amount = _HEADER.unpack(connection.recv(_HEADER.size, socket.MSG_WAITALL))
        if wanted == b"u":
            connection.sendall(_RESULT.pack(receive_rate(connection)))
        elif wanted == b"d":
            send_for(connection, amount)
        else:
            while connection.recv(int(amount), socket.MSG_WAITALL):
                connection.sendall(b"x")


def ask(address: str, wanted: bytes, amount: float) -> socket.socket:
    connection = socket.create_connection((address, _PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(_HEADER.pack(wanted, amount))
    return connection


def uplink(address: str, seconds: float) -> float:
    """Bits per second from here to the server."""
    with ask(address, b"u", seconds) as connection:
        send_for(connection, seconds)
        result: float = _RESULT.unpack(connection.recv(_RESULT.size, socket.MSG_WAITALL))[0]
        return result


def downlink(address: str, seconds: float) -> float:
    """Bits per second from the server to here."""
    with ask(address, b"d", seconds) as connection:
        return receive_rate(connection)


def message(address: str, size_bytes: float, count: float, pause_seconds: float) -> float:
    """Median seconds from sending a message to the one-byte answer, with a pause before each."""
    block, taken = bytes(int(size_bytes)), []
    with ask(address, b"e", size_bytes) as connection:
        for _ in range(int(count)):
            time.sleep(pause_seconds)
            start = time.monotonic()
            connection.sendall(block)
            connection.recv(1)
            taken.append(time.monotonic() - start)
    return statistics.median(taken)


def main() -> None:
    what, address, *numbers = sys.argv[1:]
    if what == "serve":
        ThreadingTCPServer.allow_reuse_address = True
        ThreadingTCPServer.daemon_threads = True
        with ThreadingTCPServer((address, _PORT), Handler) as server:
            print("ready", flush=True)
            server.serve_forever()
    measures: dict[str, Callable[..., float]] = {"uplink": uplink, "downlink": downlink, "message": message}
    print(measures[what](address, *map(float, numbers)))


if __name__ == "__main__":
    main()
