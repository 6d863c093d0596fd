"""Packets: the bytes that protobuf would write, with one copy of the payload and a checksum at the end."""

import pytest
import xxhash
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shared.transport.stream.packets import PAYLOAD_FIELD, Damaged, Packet, deserializer, serialize
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from shared.wire.isthmus.v1.trainer_pb2 import DownloadBlockResponse, UploadBlockRequest

PACKET_TYPES = (LinkMessage, UploadBlockRequest, DownloadBlockResponse)
CHECKSUM_TAG = (PAYLOAD_FIELD + 1) << 3 | 1

uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
headers = st.builds(
    TensorHeader,
    codec=st.text(max_size=20),
    dtype=st.integers(0, 20),
    shape=st.lists(uint64, max_size=8),
    strides=st.lists(uint64, max_size=8),
    encoded_bytes=uint64,
)
frames = st.builds(
    Frame,
    step=uint64,
    role=st.integers(0, 20),
    block=uint32,
    slot=uint32,
    placement_version=uint64,
    offset=uint64,
    tensor=st.none() | headers,
)
messages = st.one_of(
    st.builds(LinkMessage, frames=st.lists(frames, max_size=3)),
    st.builds(LinkMessage, opening=st.builds(LinkOpening, session_id=st.text(max_size=20), session_term=uint64)),
    st.builds(UploadBlockRequest, session_id=st.text(max_size=200), frame=frames),
    st.builds(DownloadBlockResponse, frame=frames),
    st.just(LinkMessage()),
)
payloads = st.binary(max_size=200) | st.integers(126, 129).map(bytes) | st.integers(16383, 16385).map(bytes)


def some_packet():
    frame = Frame(step=3, role=Role.ROLE_FEATURE, tensor=TensorHeader(codec="fp32", shape=[2, 3], encoded_bytes=24))
    return Packet(LinkMessage(frames=[frame]), bytes(range(24)))


def reason(data, message_type=LinkMessage):
    """Return the reason for which these bytes are refused. They must be refused."""
    outcome = deserializer(message_type)(data)
    assert isinstance(outcome, Damaged), outcome
    assert "\n" not in outcome.reason
    return outcome.reason


def sealed(body):
    """Append the checksum that a writer with any protobuf library appends."""
    return body + bytes([CHECKSUM_TAG]) + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


@given(messages, payloads)
def test_a_written_packet_is_read_back(message, payload):
    packet = deserializer(type(message))(serialize(Packet(message, payload)))
    assert isinstance(packet, Packet)
    assert packet.message == message
    assert bytes(packet.payload) == payload


@given(payloads)
def test_a_payload_may_be_a_view_of_other_memory(payload):
    whole = bytearray(b"before" + payload + b"after")
    view = memoryview(whole)[6 : 6 + len(payload)]
    assert serialize(Packet(LinkMessage(), view)) == serialize(Packet(LinkMessage(), payload))


def test_the_payload_is_not_copied_on_arrival():
    data = serialize(some_packet())
    packet = deserializer(LinkMessage)(data)
    assert isinstance(packet.payload, memoryview)
    assert packet.payload.obj is data


@given(messages, payloads)
def test_plain_protobuf_reads_our_bytes(message, payload):
    data = serialize(Packet(message, payload))
    plain = type(message).FromString(data)
    assert plain.payload == payload
    assert plain.checksum == xxhash.xxh3_64_intdigest(data[:-9])
    plain.ClearField("payload")
    plain.ClearField("checksum")
    assert plain == message


@given(messages, payloads)
def test_a_plain_protobuf_writer_that_appends_the_checksum_is_accepted(message, payload):
    plain = type(message)()
    plain.CopyFrom(message)
    plain.payload = payload
    packet = deserializer(type(message))(sealed(plain.SerializeToString()))
    assert isinstance(packet, Packet)
    assert packet.message == message
    assert bytes(packet.payload) == payload


@given(messages, payloads)
def test_a_plain_writer_and_ours_write_the_same_bytes(message, payload):
    plain = type(message)()
    plain.CopyFrom(message)
    plain.payload = payload
    assert serialize(Packet(message, payload)) == sealed(plain.SerializeToString())


@given(messages, payloads, st.data())
def test_any_changed_byte_is_refused(message, payload, data):
    good = serialize(Packet(message, payload))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    reason(bytes(bad), type(message))


def test_every_single_flipped_bit_is_refused():
    good = serialize(some_packet())
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        reason(bytes(bad))


def test_every_truncation_is_refused():
    good = serialize(some_packet())
    for length in range(len(good)):
        reason(good[:length])


@given(messages, payloads, st.binary(min_size=1, max_size=40))
def test_bytes_after_the_checksum_are_refused(message, payload, more):
    reason(serialize(Packet(message, payload)) + more, type(message))


@given(st.binary(max_size=100), st.sampled_from(PACKET_TYPES))
@example(b"", LinkMessage)
@example(bytes([CHECKSUM_TAG]), LinkMessage)
@example(bytes([CHECKSUM_TAG]) + bytes(8), LinkMessage)
def test_random_bytes_are_refused_in_words(data, message_type):
    reason(data, message_type)


@given(st.binary(max_size=100), st.sampled_from(PACKET_TYPES))
@example(b"\x72\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", LinkMessage)  # a length of more than 64 bits
@example(b"\x72\xff\xff\xff\xff\x0f", LinkMessage)  # a payload of 4 GiB, announced and not there
@example(b"\x72\x01", LinkMessage)
@example(b"\x72", LinkMessage)
@example(b"\x12", LinkMessage)
@example(b"\x12\x04\x2a\xff\xff\x7f", LinkMessage)  # a tensor header longer than the frame that holds it
@example(b"\x02\x00", LinkMessage)  # field 0
@example(b"\x0b\x0c", LinkMessage)  # a group
def test_random_bytes_under_a_right_checksum_do_no_more_than_protobuf_lets_them(body, message_type):
    outcome = deserializer(message_type)(sealed(body))
    if isinstance(outcome, Packet):
        plain = message_type.FromString(body)
        assert bytes(outcome.payload) == plain.payload
    else:
        assert "\n" not in outcome.reason


@given(payloads, payloads)
def test_a_field_after_the_payload_is_refused(payload, other):
    assume(payload)
    first = LinkMessage(payload=payload).SerializeToString()
    for late in (LinkMessage(payload=other or b"x"), LinkMessage(opening=LinkOpening())):
        assert "contract" in reason(sealed(first + late.SerializeToString()))


@given(uint64)
def test_a_second_checksum_field_is_refused(value):
    assume(value)
    reason(sealed(LinkMessage(checksum=value).SerializeToString()))


@pytest.mark.parametrize("message_type", PACKET_TYPES)
def test_every_streamed_message_has_payload_and_checksum_where_we_write_them(message_type):
    fields = message_type.DESCRIPTOR.fields_by_number
    assert fields[PAYLOAD_FIELD].name == "payload"
    assert fields[PAYLOAD_FIELD + 1].name == "checksum"
    assert max(fields) == PAYLOAD_FIELD + 1, "a field behind the checksum would not be covered by it"
    kinds = {field.name for field in fields.values() if field.number < PAYLOAD_FIELD and not is_length_delimited(field)}
    assert not kinds, "only length-delimited fields may stand before the payload"


def is_length_delimited(field):
    return field.message_type is not None or field.type in (field.TYPE_STRING, field.TYPE_BYTES)
