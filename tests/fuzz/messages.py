"""Calls on every RPC of a trainer as hypothesis strategies: right ones, and ones that say or are what they must not be.

Values are drawn field by field from the contract's own descriptors, so a field that is added is fuzzed too.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.model.build import build_checked_chain
from shared.placement import AGENT
from shared.registry import codec_names
from shared.tensor_wire import ABSENT, torch_dtype, transmitted_shape
from shared.training import block_state, state_file
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening, StepDone, WorkerStopping
from shared.wire.isthmus.v1.tensor_pb2 import Ack, DataType, Role, TensorHeader
from tests.fuzz.damage import damaged, json_files
from tests.support.peers.strangers import CONTROL, METHODS, message
from tests.support.wire import (
    BATCH,
    FEATURES,
    SERVICE,
    TRAINER,
    batch_packets,
    block_packets,
    open_request,
    placed,
    positioned,
)

_MOST_REPEATED_BYTES = 2_000_000
SESSION = "5e55" * 8
"""Stands in every call for the id of the session that is open when it is made."""
DRAIN = f"/{CONTROL}/Drain"
"""Not called, because whatever it says it stops the trainer."""
_CHECKSUM_BYTES = 9
_WIRE = {FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31), FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31)} | {
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
}
_EDGES = [
    -(2**63),
    -(2**31),
    -1,
    *range(10),
    63,
    64,
    65,
    1000,
    1001,
    2**20,
    *(2**n + d for n in (31, 32, 40, 63, 64) for d in (-1, 0)),
]
_TEXTS = ["", "x", SESSION, SESSION[:-1], "../" * 20, "\x00\x1b[2J\n", "é" * 5000, "z" * 100_000, "\U0001f980"]
_KNOWN = {
    "codec": [*codec_names(), "uniform99", "UNIFORM8"],
    "factory": [
        "shared.model.zoo:mlp",
        "shared.model.zoo:cnn",
        "shared.model.zoo.os:system",
        "os:system",
        "shared.model.zoo:",
        ":",
    ],
}


RELAYED = ("127.0.0.1:2", "127.0.0.1:1", "localhost:2", "127.0.0.1:99999", "unix:/run/x.sock", "")
"""Addresses to which bytes are to be carried. A trainer allows the first, and finds nobody there."""


@dataclass(frozen=True)
class Call:
    """The messages of one call. method: its full name. bodies: the messages, and whether each is given its checksum."""

    method: str
    bodies: tuple[tuple[bytes, bool], ...]

    def messages(self, session: str, worker: str = AGENT) -> list[bytes]:
        """The very bytes, which name this session, and this worker where the agent would name itself."""
        assert len(worker) == len(AGENT), "lengths are part of the bytes"
        names = {SESSION.encode(): session.encode(), AGENT.encode(): worker.encode()}
        return [sealed(_renamed(body, names)) if seal else _renamed(body, names) for body, seal in self.bodies]


def _renamed(body: bytes, names: Mapping[bytes, bytes]) -> bytes:
    for name, other in names.items():
        body = body.replace(name, other)
    return body


def calls() -> st.SearchStrategy[Call]:
    """Calls of all methods that a trainer serves."""
    ours = sorted(
        method for method in METHODS if method.startswith((f"/{SERVICE}/", f"/{CONTROL}/")) and method != DRAIN
    )
    streams = [method for method in ours if METHODS[method].client_streaming]
    theirs = sorted(METHODS.keys() - set(ours) - {DRAIN})
    return st.sampled_from([*ours, *streams, *streams, *theirs]).flatmap(_call_of)


@st.composite
def _call_of(draw: st.DrawFn, method: str) -> Call:
    streams = {"Link": _link, "UploadBlock": _upload}
    name = method.rpartition("/")[2]
    if name == "Relay":
        opening = pb.RelayOpening(protocol_version=PROTOCOL_VERSION, address=draw(st.sampled_from(RELAYED)))
        right = [pb.RelayMessage(opening=opening), pb.RelayMessage(data=b"x"), pb.RelayMessage(data=bytes(70_000))]
        sent = [draw(bodies(draw(reworded_message(one)))) if draw(st.booleans()) else one for one in right]
        return Call(method, tuple((one if isinstance(one, bytes) else one.SerializeToString(), False) for one in sent))
    if name not in streams:
        right: Any = GetMessageClass(METHODS[method].input_type).FromString(message(method, SESSION))
        fields = right.DESCRIPTOR.fields_by_name
        if "fence" in fields and draw(st.booleans()):  # of the agent that has joined
            right.fence.session_term = 1
        if "next_step" in fields or ("checkpoint" in fields and "placement" in fields):
            right.placement.CopyFrom(placed(version=1))
        return Call(method, ((draw(bodies(draw(reworded_message(right)))), False),))
    packets = [Packet(packet.message, bytes(packet.payload)) for packet in streams[name]()]
    for done in (done for packet in packets if name == "Link" for done in packet.message.dones):
        done.order.extend(draw(_ORDERS))
    if name == "Link" and draw(st.booleans()):
        claiming = [serialize(packet)[:-_CHECKSUM_BYTES] for packet in draw(_claiming(packets))]
        return Call(method, tuple((body, True) for body in claiming))
    if draw(st.integers(0, 3)) == 0:  # chunks of several tensors, mixed
        packets = [packets[0], *draw(st.permutations(packets[1:]))]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(packets) - 1))
        match draw(st.integers(0, 5)):
            case 0 if len(packets) > 1:
                del packets[at]
            case 1:
                packets.insert(draw(st.integers(0, len(packets))), packets[at])
            case 2:
                packets[at] = Packet(
                    packets[at].message, draw(st.sampled_from([b"", b"x", bytes(2000), bytes(70_000)]))
                )
            case _:
                packets[at] = Packet(draw(reworded_message(packets[at].message)), packets[at].payload)
    packets = packets[: draw(st.integers(1, len(packets)))] if draw(st.booleans()) else packets
    sent = [serialize(packet)[:-_CHECKSUM_BYTES] for packet in packets]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(sent) - 1))
        sent[at] = draw(bodies(packets[at]))
    seal = draw(st.integers(0, 9)) > 0
    return Call(method, tuple((body, seal) for body in sent))


_ORDERS = st.lists(st.sampled_from([0, 1, 2, 2**32 - 1]), max_size=5)
"""In which order a worker says that it has computed its segments, and how often each: see `StepDone`."""
_MOST_SENT_BYTES = 70_000
_SIZES = [0, 1, 1, 2, BATCH, BATCH, 10, FEATURES, 65, 2**16, 2**24, 2**40, 2**63 - 1, 2**64 - 1]
_RIGHT = {Role.ROLE_LABEL: (BATCH,), Role.ROLE_FEATURE: (BATCH, FEATURES)}


@st.composite
def _claiming(draw: st.DrawFn, packets: Sequence[Packet[Any]]) -> list[Packet[Any]]:
    """The same calls, with labels or a feature of other ranks, shapes, strides and types, whose sizes are right."""
    replaced = draw(st.sampled_from([(Role.ROLE_LABEL,), (Role.ROLE_FEATURE,), (Role.ROLE_LABEL, Role.ROLE_FEATURE)]))
    claiming, done = list[Packet[Any]](), set[int]()
    for packet in packets:
        role = packet.message.frames[0].role if packet.message.frames else None
        if role not in replaced:
            claiming.append(packet)
        elif role not in done:
            done.add(role)
            claiming.append(draw(_claim(packet, _RIGHT[role])))
    return claiming


@st.composite
def _claim(draw: st.DrawFn, packet: Packet[Any], right: Sequence[int]) -> Packet[Any]:
    """A tensor in one chunk. Half of them have the right shape and other strides or another type."""
    shape = list(right) if draw(st.booleans()) else draw(st.lists(st.sampled_from(_SIZES), max_size=9))
    if shape and draw(st.booleans()):
        shape[0] = draw(st.integers(0, BATCH + 1))
    dense = [math.prod(shape[at + 1 :]) % 2**64 for at in range(len(shape))]
    strides = [draw(st.sampled_from([size, size, size, 0, 1, 2 * size % 2**64, *_SIZES])) for size in dense]
    dtype = draw(st.sampled_from(DataType.values()))
    codec = draw(st.sampled_from(["raw", "fp32", "fp32", "uniform8"]))
    message = type(packet.message)()
    message.CopyFrom(packet.message)
    size = _encoded_bytes(codec, dtype, shape, strides)
    header = TensorHeader(codec=codec, dtype=dtype, shape=shape, strides=strides, encoded_bytes=size)
    if draw(st.integers(0, 7)) == 0:  # what only an error gradient may be
        header = draw(st.sampled_from([ABSENT, TensorHeader(is_absent=True, shape=shape, encoded_bytes=size)]))
    message.frames[0].tensor.CopyFrom(header)
    content = draw(st.sampled_from([b"\x00", b"\x01", b"\xff", b"\x00\xff\x7f\x80", bytes(range(10))]))
    return Packet(message, (content * _MOST_SENT_BYTES)[: min(size, _MOST_SENT_BYTES)])


def _encoded_bytes(codec: str, dtype: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the encoded size of such a tensor, where there is such a type and its size can be announced."""
    try:
        kind = torch_dtype(DataType.ValueType(dtype))
    except ProtocolError:
        return 0
    return codec_by_name(codec).encoded_bytes(transmitted_shape(tuple(shape), tuple(strides)), kind) % 2**64


def sealed(body: bytes) -> bytes:
    """The bytes of a streamed message, with a checksum that is right."""
    return body + b"\x79" + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def bodies(of: Message | Packet[Any]) -> st.SearchStrategy[bytes]:
    """The bytes of a message: whole, with unknown fields, or damaged."""
    good = serialize(of)[:-_CHECKSUM_BYTES] if isinstance(of, Packet) else of.SerializeToString()
    return st.one_of(st.just(good), st.sampled_from(_UNKNOWN).map(lambda more: good + more), damaged(good))


_UNKNOWN = [
    b"\xa0\x06\x01",  # field 100, a number
    b"\xa2\x06\x03abc",  # the same as bytes
    b"\xa2\x06\xff\xff\xff\xff\x0f",  # as bytes, four GiB of them
    b"\x0b" * 100_000,  # groups in groups
    b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # a length of eleven bytes
    b"\x00\x00",  # field 0
    b"\xa0\x06\x01" * 100_000,
]


@st.composite
def reworded_message(draw: st.DrawFn, right: Message) -> Message:
    """A copy of a message in which up to three fields, at any depth, say something else."""
    copy = type(right)()
    copy.CopyFrom(right)
    for _ in range(draw(st.integers(0, 3))):
        inside: Any = copy
        while inside.DESCRIPTOR.fields:
            field = draw(st.sampled_from(list(inside.DESCRIPTOR.fields)))
            if draw(st.integers(0, 9)) == 0:
                inside.ClearField(field.name)
            elif field.message_type is None:
                _set(draw, inside, field)
            elif field.is_repeated:
                there = getattr(inside, field.name)
                if there and draw(st.booleans()):
                    inside = draw(st.sampled_from(list(there)))
                    continue
                for _ in range(draw(st.sampled_from([1, 2, 65, 2000]))):
                    there.add()
            else:
                getattr(inside, field.name).SetInParent()
                inside = getattr(inside, field.name)
                continue
            break
    return copy


def _set(draw: st.DrawFn, inside: Any, field: FieldDescriptor) -> None:
    value = draw(_values(field))
    if not field.is_repeated:
        setattr(inside, field.name, value)
        return
    inside.ClearField(field.name)
    count = draw(st.sampled_from([1, 2, 2, 3, 8, 9, 50_000]))
    if isinstance(value, str | bytes):
        count = min(count, 1 + _MOST_REPEATED_BYTES // max(len(value), 1))
    few = [draw(_values(field)) for _ in range(min(count, 9) - 1)]
    getattr(inside, field.name).extend([*few, *[value] * (count - len(few))])


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type in _WIRE:
        low, high = _WIRE[field.cpp_type]
        return st.sampled_from([value for value in _EDGES if low <= value < high]) | st.integers(low, high - 1)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return st.floats()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=64) | st.just(bytes(70_000))
    if field.name in _JSON:
        return json_files(_JSON[field.name]).map(lambda data: data.decode(errors="ignore"))
    known = [texts for name, texts in _KNOWN.items() if field.name.endswith(name)]
    texts = st.sampled_from([*_TEXTS, *(text for group in known for text in group)])
    return texts | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


_JSON = {
    "kwargs_json": {"hidden": 32, "depth": 2},
    "recipe_json": json.loads(open_request().recipe_json),
    "document_json": json.loads(open_request().placement.document_json),
}


def _link() -> Sequence[Packet[Any]]:
    opening = LinkOpening(protocol_version=PROTOCOL_VERSION, session_id=SESSION, session_term=1, worker=AGENT)
    after = [
        LinkMessage(ack=Ack(received_bytes=1, credit_bytes=1)),
        LinkMessage(dones=[StepDone(worker=AGENT, step=0)]),
        LinkMessage(stopping=WorkerStopping(worker=TRAINER)),
    ]
    begin = [LinkMessage(opening=opening), LinkMessage.FromString(positioned()[:-_CHECKSUM_BYTES])]
    return [*map(Packet, begin), *batch_packets(0), *map(Packet, after)]


def _upload() -> Sequence[Packet[Any]]:
    return block_packets(SESSION, _BLOCK, _STATE)


_BLOCK = 1
_STATE = state_file.serialize(
    block_state.collect(
        build_checked_chain("shared.model.zoo:mlp", {}, 0, torch.zeros(BATCH, FEATURES)).blocks[_BLOCK], None
    )
)
