"""Time of bytes to another process and back: over a plain TCP socket, and over plain gRPC with nothing of ours.

The two bounds that `benchmarks.overhead` stands beside. Where a rhythm is asked for, each end works on a thread before
it sends, while the other waits, as the two sides of a step do. What an end spent on that is not counted.
"""

import asyncio
import hashlib
import multiprocessing
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc

from shared.concurrency.heap import keep_freed_memory
from shared.concurrency.threads import WorkerThread
from shared.transport.rpc.options import channel_options, server_options

CHUNK_BYTES = 1 << 20
_METHOD = "/isthmus.benchmark.Echo/Echo"
_LIMITS = (2 * CHUNK_BYTES, 20.0)  # bytes of a message, seconds of keepalive
_SPENT = struct.Struct("d")
_processes = multiprocessing.get_context("spawn")  # gRPC does not survive a fork


def work(seconds: float) -> float:
    """Keep a core busy without the interpreter's lock; returns the seconds that it really took."""
    started, block = time.perf_counter(), bytes(16384)
    while time.perf_counter() - started < seconds:
        hashlib.blake2b(block)
    return time.perf_counter() - started


def socket_seconds(count: int, rounds: int, work_seconds: float) -> list[float]:
    """Seconds of each round trip of `count` bytes over plain TCP."""
    ours, theirs = _processes.Pipe()
    peer = _processes.Process(target=_serve_socket, args=(theirs, count, rounds, work_seconds))
    peer.start()
    seconds, buffer = [], memoryview(bytearray(_SPENT.size + count))
    with socket.create_connection(("127.0.0.1", ours.recv())) as connection:
        for _ in range(rounds):
            work(work_seconds)
            started = time.perf_counter()
            connection.sendall(buffer[_SPENT.size :])
            _receive(connection, buffer)
            seconds.append(time.perf_counter() - started - _SPENT.unpack_from(buffer)[0])
    peer.join()
    return seconds


def grpc_seconds(count: int, rounds: int, work_seconds: float) -> list[float]:
    """The same over one gRPC stream, in messages of at most CHUNK_BYTES, with the options that the product uses."""
    ours, theirs = _processes.Pipe()
    peer = _processes.Process(target=_serve_grpc, args=(theirs, count, rounds, work_seconds))
    peer.start()
    try:
        return asyncio.run(_ask(f"127.0.0.1:{ours.recv()}", count, rounds, work_seconds))
    finally:
        ours.send("done")
        peer.join()


def _serve_socket(parent: Connection, count: int, rounds: int, work_seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        parent.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    buffer = memoryview(bytearray(_SPENT.size + count))
    with connection:
        for _ in range(rounds):
            _receive(connection, buffer[_SPENT.size :])
            _SPENT.pack_into(buffer, 0, work(work_seconds))
            connection.sendall(buffer)


def _receive(connection: socket.socket, buffer: memoryview) -> None:
    received = 0
    while received < len(buffer):
        received += connection.recv_into(buffer[received:])


def _serve_grpc(parent: Connection, count: int, rounds: int, work_seconds: float) -> None:
    keep_freed_memory()
    worker = WorkerThread("work")

    async def echo(_requests: object, context: Any) -> None:
        for _ in range(rounds):
            chunks = [await context.read() for _ in range(_chunks(count))]
            await context.write(_SPENT.pack(await worker.run(work, work_seconds)))
            for chunk in chunks:
                await context.write(chunk)

    async def serve() -> None:
        server = grpc.aio.server(options=server_options(*_LIMITS))
        service, method = _METHOD.strip("/").split("/")
        handler: Any = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        parent.send(port)
        await asyncio.get_running_loop().run_in_executor(None, parent.recv)
        await server.stop(None)

    asyncio.run(serve())
    worker.close()


async def _ask(address: str, count: int, rounds: int, work_seconds: float) -> list[float]:
    worker, seconds = WorkerThread("work"), []
    chunk = bytes(min(count, CHUNK_BYTES))
    async with grpc.aio.insecure_channel(address, options=channel_options(*_LIMITS)) as channel:
        call: Any = channel.stream_stream(_METHOD)()
        for _ in range(rounds):
            await worker.run(work, work_seconds)
            started = time.perf_counter()
            for _ in range(_chunks(count)):
                await call.write(chunk)
            (spent,) = _SPENT.unpack(await call.read())
            for _ in range(_chunks(count)):
                await call.read()
            seconds.append(time.perf_counter() - started - spent)
        await call.done_writing()
    worker.close()
    return seconds


def _chunks(count: int) -> int:
    return -(-count // CHUNK_BYTES)
