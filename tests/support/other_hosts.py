"""Connections that come from another address of this machine, as those of another device would."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


@contextmanager
def reached_from(host: str, address: str) -> Iterator[str]:
    """An address whose connections go on to `address`, which sees `host` as the caller. host: of the loopback network."""
    target, _, port = address.rpartition(":")
    open_ends: list[socket.socket] = []

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def take() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                open_ends.append(near)
                with suppress(OSError):
                    far = socket.create_connection((target, int(port)), source_address=(host, 0))
                    open_ends.append(far)
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=carry, args=ends, daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=take, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for end in open_ends:
        end.close()
