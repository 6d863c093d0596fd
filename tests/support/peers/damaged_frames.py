"""Frames that say what they must not, drawn from a seed, around the right payload."""

from random import Random
from typing import Any, TypeVar

from google.protobuf.message import Message

from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, TensorHeader
from tests.support.wire import BATCH, FEATURES

M = TypeVar("M", bound=Message)

BIG = (2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers at the ends of the types that a peer may send."""


def hostile_frames(draw: Random, packet: Packet[Any]) -> dict[str, bytes]:
    """The same chunk saying something that it must not, one thing each."""
    several = "frames" in packet.message.DESCRIPTOR.fields_by_name
    frame = packet.message.frames[0] if several else packet.message.frame

    def reframed(other: Frame) -> bytes:
        message = but(packet.message)
        (message.frames[0] if several else message.frame).CopyFrom(other)
        return packet_bytes(message, packet.payload)

    frameless = but(packet.message)
    frameless.ClearField("frames" if several else "frame")
    cases = {
        "step": reframed(but(frame, step=_other(draw, frame.step, 0, 1, 3, 5, *BIG))),
        "role": reframed(but(frame, role=_other(draw, frame.role, *range(6), 77, 2**31 - 1, -1))),
        "block": reframed(but(frame, block=_other(draw, frame.block, 0, 1, 3, 5, 2**32 - 1))),
        "slot": reframed(but(frame, slot=draw.choice([1, 7, 2**32 - 1]))),
        "placement": reframed(but(frame, placement_version=draw.choice([1, *BIG]))),
        "offset": reframed(but(frame, offset=_other(draw, frame.offset, 0, 1, 64, 1024, *BIG))),
        "payload too long": packet_bytes(packet.message, bytes(packet.payload) + bytes(40_000)),
        "no payload": packet_bytes(packet.message),
        "no frame": packet_bytes(frameless, packet.payload),
    }
    if several:
        cases["payload bytes"] = reframed(but(frame, payload_bytes=draw.choice([1, *BIG])))
    other = but(frame)
    if not frame.HasField("tensor"):
        other.tensor.SetInParent()
        return cases | {"announced twice": reframed(other)}
    other.ClearField("tensor")
    cases["not announced"] = reframed(other)
    for name, header in _hostile_headers(draw, frame.tensor).items():
        other.tensor.CopyFrom(header)
        cases[name] = reframed(other)
    return cases


def _hostile_headers(draw: Random, header: TensorHeader) -> dict[str, TensorHeader]:
    size = header.encoded_bytes
    many = len(header.shape)
    strides = draw.choice([[], [1] * 9, [2**63] * many, [2**40] * many, [1] * 200_000])
    terabyte = 2**40 // (1 if header.dtype == DataType.DATA_TYPE_UINT8 else 4)
    return {
        "bytes": but(header, encoded_bytes=_other(draw, size, 0, size - 1, size + 1, *BIG)),
        # A file is bytes: that they are announced as booleans, which are as long, does not matter.
        "type": but(header, dtype=_other(draw, header.dtype, *range(8), 99, -1)),
        "codec": but(header, codec=any_text(draw)),
        "shape": but(header, shape=any_sizes(draw)),
        "strides": but(header, strides=strides),
        "terabyte": but(header, shape=[terabyte], strides=[1], encoded_bytes=2**40),
    }


def any_sizes(draw: Random) -> list[int]:
    """Draw the sizes of a tensor, most of which cannot be."""
    big = draw.choice(BIG)
    return draw.choice(
        [[], [0], [BATCH + 1, FEATURES], [big], [big, big], [BATCH, big], [BATCH, big, 0], [1] * 9, [3] * 200_000]
    )


def any_text(draw: Random) -> str:
    """Draw a text that may be hostile wherever a name is expected."""
    return draw.choice(["", "zip", "\x00\x1b[2J\n", "é" * 5000, "z" * 100_000, "os:system", "a.b:c"])


def packet_bytes(message: Any, payload: bytes | memoryview = b"") -> bytes:
    """Serialize a message of a stream with its payload."""
    return serialize(Packet(message, payload))


def but(message: M, **fields: Any) -> M:
    """Copy a message with some of its fields, lists included, replaced."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        if isinstance(value, list):
            copy.ClearField(name)
            getattr(copy, name).extend(value)
        else:
            setattr(copy, name, value)
    return copy


def _other(draw: Random, right: int, *choices: int) -> int:
    return draw.choice([choice for choice in choices if choice != right])
