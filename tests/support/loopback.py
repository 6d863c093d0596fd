"""A channel of packets within this process, in place of a gRPC call."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from shared.transport.stream.packets import Packet, PacketChannel

Out = TypeVar("Out")
In = TypeVar("In")
M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Message)

MOST_UNREAD_PACKETS = 16
"""Packets that wait in memory for their reader; one more waits to be written."""


@dataclass(frozen=True, slots=True)
class LoopbackChannel(PacketChannel[Out, In]):
    """One end of a channel within this process. end: tells the reader at the other end that no more comes."""

    end: Callable[[], Awaitable[None]]


def loopback() -> tuple[LoopbackChannel[M, N], LoopbackChannel[N, M]]:
    """Both ends of a channel within this process.

    Each end reads the other's messages in their order. Payloads are copied, as a socket would do. Used on one event loop.
    """
    there: asyncio.Queue[Packet[M] | None] = asyncio.Queue(MOST_UNREAD_PACKETS)
    back: asyncio.Queue[Packet[N] | None] = asyncio.Queue(MOST_UNREAD_PACKETS)
    near: LoopbackChannel[M, N] = LoopbackChannel(
        back.get, lambda packet: there.put(_copy(packet)), lambda: there.put(None)
    )
    far: LoopbackChannel[N, M] = LoopbackChannel(
        there.get, lambda packet: back.put(_copy(packet)), lambda: back.put(None)
    )
    return near, far


def _copy(packet: Packet[M]) -> Packet[M]:
    message = type(packet.message)()
    message.CopyFrom(packet.message)
    return Packet(message, b"".join((packet.payload, *packet.rest)))
