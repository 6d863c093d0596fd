"""Streamed messages to bytes and back: one header message, one payload, one checksum.

The bytes are those that protobuf would write, with one copy of the payload instead of three: the header's fields, then
the payload as field 14, then XXH3-64 of all that as field 15. Any protobuf library can read them, and write them: it
serialises the rest and appends the checksum.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import xxhash
from google.protobuf.message import DecodeError, Message

from shared.errors import DamagedMessageError

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Out = TypeVar("Out")
In = TypeVar("In")

MOST_HEADER_BYTES = 512 * 1024
"""The largest message without its payload. The request that opens a session is the largest that an edge sends."""
_MOST_FIELDS = 64
"""The most top-level fields of a streamed message: the reader looks at each."""
PAYLOAD_FIELD = 14
_LENGTH_DELIMITED, _FIXED64 = 2, 1
_PAYLOAD_TAG = PAYLOAD_FIELD << 3 | _LENGTH_DELIMITED
_CHECKSUM_TAG = (PAYLOAD_FIELD + 1) << 3 | _FIXED64
_PAYLOAD_TAG_BYTES, _CHECKSUM_TAG_BYTES = bytes([_PAYLOAD_TAG]), bytes([_CHECKSUM_TAG])
_CHECKSUM_BYTES = 9  # the tag and eight bytes, little-endian


@dataclass(slots=True)
class Packet(Generic[T]):
    """A streamed message and, beside it, the payload that is not copied into it."""

    message: T
    payload: memoryview | bytes = b""
    rest: tuple[memoryview | bytes, ...] = ()
    """Parts after `payload`, of a packet that is to be sent; a packet that has come has all of it in one piece."""


@dataclass(slots=True)
class Damaged:
    """A message that has arrived damaged; `reason` completes the sentence 'damaged message: ...'."""

    reason: str


@dataclass(frozen=True, slots=True)
class PacketChannel(Generic[Out, In]):
    """One end of the carrier of a stream's packets, such as a gRPC call.

    read: the next packet, or None at the end. write: hands one packet over; called by one task at a time.
    """

    read: Callable[[], Awaitable[Packet[In] | Damaged | None]]
    write: Callable[[Packet[Out]], Awaitable[None]]


def undamaged(received: T | Damaged) -> T:
    """Return the message that has arrived. Raises DamagedMessageError where it is damaged."""
    if isinstance(received, Damaged):
        raise DamagedMessageError(f"damaged message: {received.reason}")
    return received


def serialize(packet: Packet[M]) -> bytes:
    """The packet's bytes on the wire, checksum included."""
    parts: list[bytes | memoryview] = [packet.message.SerializeToString()]
    if count := len(packet.payload) + sum(map(len, packet.rest)):
        parts += [_PAYLOAD_TAG_BYTES + _varint(count), packet.payload, *packet.rest]
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    parts.append(_CHECKSUM_TAG_BYTES + digest.intdigest().to_bytes(8, "little"))
    return b"".join(parts)


def deserializer(message_type: type[M]) -> Callable[[bytes], Packet[M] | Damaged]:
    """A function from received bytes to a packet whose payload is a view of them.

    It returns the error instead of raising it, because gRPC would turn an exception into a failure without a reason.
    """

    def deserialize(data: bytes) -> Packet[M] | Damaged:
        view = memoryview(data)
        body = len(data) - _CHECKSUM_BYTES
        if body < 0 or data[body] != _CHECKSUM_TAG:
            return Damaged("it does not end with a checksum")
        if xxhash.xxh3_64_intdigest(view[:body]) != int.from_bytes(view[body + 1 :], "little"):
            return Damaged("its checksum is wrong")
        try:
            header_end, payload = _split(view[:body])
            if header_end > MOST_HEADER_BYTES:
                return _too_long(header_end)
            return Packet(message_type.FromString(bytes(view[:header_end])), payload)
        except (DecodeError, IndexError):
            return Damaged("it is not a message of this contract")

    return deserialize


def message_deserializer(message_type: type[M]) -> Callable[[bytes], M | Damaged]:
    """A function from received bytes to a message that is not streamed and has neither payload nor checksum."""

    def deserialize(data: bytes) -> M | Damaged:
        if len(data) > MOST_HEADER_BYTES:
            return _too_long(len(data))
        try:
            return message_type.FromString(data)
        except DecodeError:
            return Damaged("it is not a message of this contract")

    return deserialize


def _too_long(count: int) -> Damaged:
    return Damaged(f"it has {count} bytes beside a payload; {MOST_HEADER_BYTES} are the most")


def _split(body: memoryview) -> tuple[int, memoryview | bytes]:
    """Return the end of the header's fields, and the payload. Raises IndexError or DecodeError for bytes that are no
    such message."""
    position, end = 0, len(body)
    for _ in range(_MOST_FIELDS):
        if position == end:
            return position, b""
        start, tag = position, body[position]
        if tag & 7 != _LENGTH_DELIMITED:
            raise DecodeError
        length = body[position + 1]
        position += 2
        if length > 0x7F:  # it goes on
            length, position = _read_varint(body, position - 1)
        if position + length > end:
            raise IndexError
        if tag == _PAYLOAD_TAG:
            if position + length != end:
                raise DecodeError
            return start, body[position:]
        position += length
    raise IndexError


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(body: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
