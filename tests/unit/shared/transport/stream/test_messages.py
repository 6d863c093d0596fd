"""Messages of several chunks: however tensors are cut and gathered, the same tensors arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.transport.stream.framing import MOST_FRAMES, Assembler, TensorKey, WireTensor, messages, payloads
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader


def tensors_of(contents: list[bytes]) -> list[WireTensor]:
    return [
        WireTensor(TensorKey(step, Role.ROLE_FEATURE, 1), 3, TensorHeader(encoded_bytes=len(one)), memoryview(one))
        for step, one in enumerate(contents)
    ]


@given(st.lists(st.binary(max_size=100), max_size=2 * MOST_FRAMES + 1), st.integers(1, 300))
def test_any_cut_into_messages_gives_the_same_tensors(contents, most_bytes):
    assembler = Assembler(lambda *_: None, lambda size: memoryview(bytearray(size)))
    whole = []
    for parts in messages(tensors_of(contents), most_bytes, 7):
        frames, views = zip(*parts, strict=True)
        assert sum(map(len, views)) <= most_bytes
        assert len(frames) <= MOST_FRAMES
        for frame, part in payloads(frames, b"".join(views)):
            if (tensor := assembler.add(frame, part)) is not None:
                whole.append(tensor)
    assert assembler.between_tensors
    assert [bytes(tensor.payload) for tensor in whole] == contents
    assert [tensor.key.step for tensor in whole] == list(range(len(contents)))
    assert {tensor.sender_nanoseconds for tensor in whole} <= {7}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=MOST_FRAMES))
def test_chunks_that_fit_in_one_message_go_in_one(sizes):
    contents = [bytes(size) for size in sizes]
    assert len(list(messages(tensors_of(contents), sum(sizes) + 1))) == 1
    if sum(sizes) > 1 and sizes[-1]:
        assert len(list(messages(tensors_of(contents), sum(sizes) - 1))) > 1, "one byte is too much"


@pytest.mark.parametrize(("count", "needed"), [(MOST_FRAMES, 1), (MOST_FRAMES + 1, 2)])
def test_both_sides_of_the_most_frames(count, needed):
    assert len(list(messages(tensors_of([b"x"] * count), 1000))) == needed


def test_payloads_are_views_and_the_last_frame_has_the_rest():
    whole = bytes(range(10))
    split = [bytes(part) for _, part in payloads([Frame(payload_bytes=3), Frame(payload_bytes=0), Frame()], whole)]
    assert split == [whole[:3], b"", whole[3:]]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([11, 0], "11 bytes of a payload of 10"),
        ([2**64 - 1, 0], "of a payload of 10"),
        ([6, 5, 0], "11 bytes of a payload of 10"),
        ([10], "has the rest"),
        ([4, 6], "has the rest"),
    ],
)
def test_wrong_lengths_of_payloads_are_refused(said, says):
    with pytest.raises(ProtocolError, match=says):
        list(payloads([Frame(payload_bytes=count) for count in said], bytes(10)))


def test_a_chunk_may_end_where_the_payload_does():
    assert [len(part) for _, part in payloads([Frame(payload_bytes=10), Frame()], bytes(10))] == [10, 0]
