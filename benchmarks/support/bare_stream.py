"""A gRPC stream with nothing of ours on it, in each style that gRPC has for Python: what one costs at least.

`python -m benchmarks.support.bare_stream serve STYLE` serves streams that echo what comes, and prints its port.
`python -m benchmarks.support.bare_stream ask STYLE PORT BYTES MESSAGES ROUNDS` sends BYTES in so many messages, waits until as
many have come back, and does that so often. Both take the product's options.
"""

import asyncio
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.support.process_use import ProcessUse, use_of
from shared.concurrency.heap import keep_freed_memory
from shared.transport.rpc.options import MESSAGE_OVERHEAD_BYTES, channel_options, server_options

STYLES = ("asyncio", "uvloop", "threads")
"""asyncio's own loop, uvloop's in its place, and gRPC's streams that block a thread each."""
MOST_BYTES = 16 << 20
_METHOD = "/isthmus.benchmark.Echo/Echo"
_LIMITS = (MOST_BYTES + MESSAGE_OVERHEAD_BYTES, 20.0)  # bytes of a message, seconds of keepalive


@dataclass(frozen=True)
class StreamCost:
    """The cost of a round: of the end that asks and of the one that echoes, and the seconds that pass."""

    client: ProcessUse
    server: ProcessUse
    round: float


def stream_cost(style: str, count: int, messages: int, rounds: int) -> StreamCost:
    """Measure the cost of a round of `count` bytes each way. Two lengths are subtracted, so starting and ending cancel
    out."""
    short, long = (_whole_run(style, count, messages, times) for times in (rounds, 3 * rounds))
    more = 2 * rounds
    return StreamCost(
        long.client.less(short.client, more), long.server.less(short.server, more), (long.round - short.round) / more
    )


def _whole_run(style: str, count: int, messages: int, rounds: int) -> StreamCost:
    server = _started("serve", style)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    began = time.monotonic()
    try:
        client = use_of(_started("ask", style, port, str(count), str(messages), str(rounds)))
    finally:
        server.terminate()
    seconds = time.monotonic() - began
    return StreamCost(client, use_of(server, expected=-signal.SIGTERM), seconds)


def _started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.support.bare_stream", *arguments],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _handlers(echo: Any) -> tuple[grpc.GenericRpcHandler]:
    service, method = _METHOD.strip("/").split("/")
    return (grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(echo)}),)


async def _serve_on_a_loop() -> None:
    async def echo(_requests: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server(options=server_options(*_LIMITS))
    server.add_generic_rpc_handlers(_handlers(echo))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _serve_on_threads() -> None:
    def echo(requests: Iterable[bytes], _context: object) -> Iterator[bytes]:
        yield from requests

    server = grpc.server(ThreadPoolExecutor(4), options=server_options(*_LIMITS))
    server.add_generic_rpc_handlers(_handlers(echo))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


async def _ask_on_a_loop(address: str, message: bytes, messages: int, rounds: int) -> None:
    async with grpc.aio.insecure_channel(address, options=channel_options(*_LIMITS)) as channel:
        call: Any = channel.stream_stream(_METHOD)()
        for _ in range(rounds):
            for _ in range(messages):
                await call.write(message)
            for _ in range(messages):
                await call.read()
        await call.done_writing()


def _ask_on_threads(address: str, message: bytes, messages: int, rounds: int) -> None:
    to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(address, options=channel_options(*_LIMITS)) as channel:
        echo: Any = channel.stream_stream(_METHOD)
        answers = echo(iter(to_send.get, None))
        for _ in range(rounds):
            for _ in range(messages):
                to_send.put(message)
            for _ in range(messages):
                next(answers)
        to_send.put(None)


def main() -> None:
    """Serve, or ask."""
    keep_freed_memory()
    what, style, *rest = sys.argv[1:]
    if style == "uvloop":
        import uvloop

        uvloop.install()
    if what == "serve":
        _serve_on_threads() if style == "threads" else asyncio.run(_serve_on_a_loop())
        return
    port, count, messages, rounds = map(int, rest)
    address, message = f"127.0.0.1:{port}", bytes(count // messages)
    if style == "threads":
        _ask_on_threads(address, message, messages, rounds)
    else:
        asyncio.run(_ask_on_a_loop(address, message, messages, rounds))


if __name__ == "__main__":
    main()
