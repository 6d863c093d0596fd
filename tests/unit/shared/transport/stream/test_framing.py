"""Framing: tensors become chunks and chunks the same tensor. Any other input is refused before memory is taken."""

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.bounds import MOST_CLOCK_NANOSECONDS
from shared.errors import ProtocolError
from shared.transport.stream.framing import (
    MAX_DIMENSIONS,
    MOST_TENSORS,
    Assembler,
    TensorKey,
    WireTensor,
    block_key,
    chunks,
    key_of,
    role_name,
)
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader

uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
roles = st.sampled_from([role for role in Role.values() if role != Role.ROLE_UNSPECIFIED])
keys = st.builds(TensorKey, uint64, roles, uint32, uint32)


class Memory:
    """An allocator that records the requested bytes."""

    def __init__(self) -> None:
        self.asked = []

    def __call__(self, size):
        self.asked.append(size)
        return memoryview(bytearray(size))


KEY = TensorKey(4, Role.ROLE_FEATURE, 2)


def tensor(payload, key=KEY, version=0, **header):
    return WireTensor(key, version, TensorHeader(encoded_bytes=len(payload), **header), memoryview(payload))


def anything(_frame, _key):
    pass


def framed(payload=bytes(range(100)), chunk_bytes=40):
    """Return the chunks of a tensor. Those of the default are of 40, 40 and 20 bytes."""
    return list(chunks(tensor(payload), chunk_bytes))


def assembled(frames, accept=anything, memory=None):
    """Return the tensor that the last of the frames completes."""
    assembler = Assembler(accept, memory or Memory())
    *before, last = [assembler.add(frame, payload) for frame, payload in frames]
    assert before == [None] * len(before)
    assert assembler.between_tensors == (last is not None)
    return last


def changed(frame, **fields):
    copy = Frame()
    copy.CopyFrom(frame)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


@given(st.binary(max_size=300), st.integers(1, 310), keys, uint64, st.integers(0, MOST_CLOCK_NANOSECONDS))
def test_chunks_put_together_are_the_tensor(payload, chunk_bytes, key, version, nanoseconds):
    sent = tensor(payload, key, version, codec="fp32", shape=[len(payload)], strides=[1])
    frames = list(chunks(sent, chunk_bytes, nanoseconds))
    memory = Memory()
    arrived = assembled(frames, memory=memory)
    assert (arrived.key, arrived.placement_version) == (key, version)
    assert arrived.header == sent.header
    assert bytes(arrived.payload) == payload
    assert arrived.sender_nanoseconds == nanoseconds
    assert memory.asked == [len(payload)], "memory is taken once"


@given(st.binary(max_size=300), st.integers(1, 310))
def test_chunks_are_views_in_order_of_at_most_the_size_asked_for(payload, chunk_bytes):
    sent = tensor(payload)
    frames = list(chunks(sent, chunk_bytes))
    assert len(frames) == max(1, -(-len(payload) // chunk_bytes))
    offset = 0
    for frame, part in frames:
        assert frame.offset == offset
        assert len(part) <= chunk_bytes
        assert part.obj is sent.payload.obj
        assert frame.HasField("tensor") == (offset == 0)
        offset += len(part)
    assert offset == len(payload)
    assert all(len(part) == chunk_bytes for _, part in frames[:-1]), "only the last is shorter"


@given(st.lists(st.tuples(st.binary(max_size=50), st.integers(1, 60)), min_size=1, max_size=5))
def test_one_tensor_after_the_other_each_cut_as_it_likes(parts):
    memory, arrived = Memory(), []
    assembler = Assembler(anything, memory)
    for step, (payload, chunk_bytes) in enumerate(parts):
        for frame, part in chunks(tensor(payload, KEY._replace(step=step)), chunk_bytes):
            if (whole := assembler.add(frame, part)) is not None:
                arrived.append(whole)
        assert assembler.between_tensors
    assert [(whole.key.step, bytes(whole.payload)) for whole in arrived] == [
        (step, payload) for step, (payload, _) in enumerate(parts)
    ]
    assert memory.asked == [len(payload) for payload, _ in parts]


def test_tensors_do_not_share_memory():
    assembler = Assembler(anything, Memory())
    first = assembler.add(*next(chunks(tensor(b"one", KEY), 10)))
    assembler.add(*next(chunks(tensor(b"two", KEY._replace(step=5)), 10)))
    assert bytes(first.payload) == b"one"


@given(keys, uint64, st.integers(0, 20), uint64, uint64, st.binary(max_size=20))
def test_a_refused_tensor_takes_no_memory(key, version, role, offset, announced, payload):
    def refuse(_frame, _key):
        raise ProtocolError("no")

    memory = Memory()
    frame = Frame(**key._replace(role=role)._asdict(), placement_version=version, offset=offset)
    frame.tensor.encoded_bytes = announced
    with pytest.raises(ProtocolError):
        Assembler(refuse, memory).add(frame, payload)
    assert memory.asked == []


def test_a_terabyte_is_judged_before_it_is_allocated():
    def at_most_a_megabyte(frame, _key):
        if frame.tensor.encoded_bytes > 1 << 20:
            raise ProtocolError("too much")

    memory = Memory()
    frame = Frame(step=4, role=Role.ROLE_FEATURE, tensor=TensorHeader(encoded_bytes=1 << 40))
    with pytest.raises(ProtocolError, match="too much"):
        Assembler(at_most_a_megabyte, memory).add(frame, bytes(1000))
    assert memory.asked == []


@pytest.mark.parametrize("field", ["shape", "strides"])
@pytest.mark.parametrize(("dimensions", "taken"), [(MAX_DIMENSIONS, True), (MAX_DIMENSIONS + 1, False), (10**6, False)])
def test_more_dimensions_than_a_tensor_has_are_refused_before_they_are_read(field, dimensions, taken):
    asked = []
    frame = Frame(step=4, tensor=TensorHeader(encoded_bytes=3, **{field: [1] * dimensions}))
    assembler = Assembler(lambda frame, _: asked.append(frame), Memory())
    if taken:
        assert assembler.add(frame, b"abc") is not None
    else:
        with pytest.raises(ProtocolError, match=f"{dimensions} dimensions"):
            assembler.add(frame, b"abc")
    assert len(asked) == taken


@given(st.permutations(range(3)))
def test_chunks_out_of_order_are_refused(order):
    assume(list(order) != sorted(order))
    frames = framed()
    with pytest.raises(ProtocolError):
        assembled([frames[place] for place in order])


@given(st.sampled_from([(0, 0), (0, 1, 1), (0, 2), (1,), (2,), (0, 1, 0), (0, 1, 2, 2), (0, 1, 2, 1)]))
def test_chunks_twice_or_left_out_are_refused(order):
    frames = framed()
    with pytest.raises(ProtocolError):
        assembled([frames[place] for place in order])


@st.composite
def interleavings(draw, in_parts=False):
    """Draw tensors with keys of their own, and their chunks mixed. The chunks of one are in the order of their bytes.

    in_parts: there is a tensor of several chunks.
    """
    drawn = draw(st.lists(keys, min_size=int(in_parts), max_size=MOST_TENSORS, unique=True))
    tensors, sizes = [], []
    for key in drawn:
        cut = in_parts and not tensors
        tensors.append(tensor(draw(st.binary(min_size=2 if cut else 0, max_size=60)), key))
        sizes.append(draw(st.integers(1, len(tensors[-1].payload) - 1 if cut else 70)))
    left = [list(chunks(one, size)) for one, size in zip(tensors, sizes, strict=True)]
    mixed = []
    while left := [frames for frames in left if frames]:
        mixed.append(draw(st.sampled_from(left)).pop(0))
    return tensors, mixed


@given(interleavings())
def test_chunks_of_several_tensors_in_any_order_give_the_tensors(drawn):
    tensors, mixed = drawn
    memory = Memory()
    assembler = Assembler(anything, memory)
    wholes = [whole for frame, payload in mixed if (whole := assembler.add(frame, payload)) is not None]
    assert assembler.between_tensors
    assert {one.key: bytes(one.payload) for one in wholes} == {one.key: bytes(one.payload) for one in tensors}
    assert sorted(memory.asked) == sorted(len(one.payload) for one in tensors), "memory is taken once for each"


@given(interleavings(in_parts=True), st.data())
def test_without_one_of_its_chunks_a_tensor_never_becomes_whole(drawn, data):
    _, mixed = drawn
    at = data.draw(st.integers(0, len(mixed) - 1))
    assembler, wholes = Assembler(anything, Memory()), []
    with suppress(ProtocolError):
        for frame, payload in (*mixed[:at], *mixed[at + 1 :]):
            if (whole := assembler.add(frame, payload)) is not None:
                wholes.append(whole.key)
    assert key_of(mixed[at][0]) not in wholes


@given(interleavings(in_parts=True), st.data())
def test_a_chunk_that_comes_twice_is_refused(drawn, data):
    _, mixed = drawn
    # The judge of announcements refuses a whole tensor that comes twice.
    parts = [at for at, (frame, part) in enumerate(mixed) if frame.offset or len(part) < frame.tensor.encoded_bytes]
    at = data.draw(st.sampled_from(parts))
    assembler = Assembler(anything, Memory())
    for frame, payload in mixed[: at + 1]:
        assembler.add(frame, payload)
    with pytest.raises(ProtocolError):
        assembler.add(*mixed[at])


def test_one_tensor_more_than_may_be_under_way_is_refused_before_it_is_judged_and_takes_no_memory():
    judged, memory = [], Memory()
    assembler = Assembler(lambda _, key: judged.append(key.step), memory)
    begun = [chunks(tensor(b"abc", KEY._replace(step=step)), 2) for step in range(MOST_TENSORS + 1)]
    for one in begun[:-1]:
        assembler.add(*next(one))
    frame, payload = next(begun[-1])
    with pytest.raises(
        ProtocolError, match=f"the feature of step {MOST_TENSORS} .* {MOST_TENSORS} tensors are under way"
    ):
        assembler.add(frame, payload)
    assert judged == list(range(MOST_TENSORS))
    assert memory.asked == [3] * MOST_TENSORS
    assert assembler.add(*next(begun[0])) is not None
    assembler.add(frame, payload)


@pytest.mark.parametrize("field", TensorKey._fields)
@pytest.mark.parametrize("place", [1, 2])
def test_a_chunk_whose_key_has_changed_is_no_chunk_of_the_tensor(field, place):
    frames, memory = framed(), Memory()
    frame, payload = frames[place]
    other = changed(frame, **{field: 5})
    with pytest.raises(ProtocolError, match=f"a chunk at byte {frame.offset} came where byte 0 was expected"):
        assembled([*frames[:place], (other, payload)], memory=memory)
    assert memory.asked == [100], "nothing is taken for what was not announced"


def test_a_moment_that_no_clock_shows_is_refused_before_memory_is_taken():
    memory, (frame, payload) = Memory(), framed()[0]
    with pytest.raises(ProtocolError, match="which no clock shows"):
        assembled([(changed(frame, sender_nanoseconds=MOST_CLOCK_NANOSECONDS + 1), payload)], memory=memory)
    assert memory.asked == []


@pytest.mark.parametrize("field", ["placement_version", "sender_nanoseconds", "rate_drops", "label_count"])
def test_a_later_chunk_that_repeats_the_first_ones_header_is_refused(field):
    frames = framed()
    with pytest.raises(ProtocolError, match=r"the feature of step 4 .* announced in its first chunk, and nowhere else"):
        assembled([frames[0], (changed(frames[1][0], **{field: 1}), frames[1][1])])


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (TensorKey(4, Role.ROLE_LABEL), "the label of step 4"),
        (TensorKey(4, Role.ROLE_FEATURE, 2), "the feature of step 4 (block 2)"),
        (TensorKey(4, Role.ROLE_ERROR_GRADIENT, 2, 1), "the error gradient of step 4 (block 2, slot 1)"),
        (block_key(5), "the state of block 5"),
        (TensorKey(3, Role.ROLE_BLOCK, 5, 1), "the state of block 5 (step 3, slot 1)"),
    ],
)
def test_a_key_names_its_tensor(key, sentence):
    assert str(key) == sentence


@given(st.integers(0, 120), st.sampled_from([0, 1, 2]))
def test_a_wrong_offset_is_refused(offset, place):
    frames = framed()
    frame, payload = frames[place]
    assume(offset != frame.offset)
    with pytest.raises(ProtocolError, match="was expected"):
        assembled([*frames[:place], (changed(frame, offset=offset), payload)])


def test_a_wrong_first_offset_takes_no_memory():
    (frame, payload), *_ = framed()
    memory = Memory()
    with pytest.raises(ProtocolError, match="byte 0 was expected"):
        Assembler(anything, memory).add(changed(frame, offset=40), payload)
    assert memory.asked == []


@given(st.integers(0, 2), st.integers(1, 50))
def test_one_byte_more_than_announced_is_refused(place, more):
    frames = framed()
    left = 100 - frames[place][0].offset
    frame, _ = frames[place]
    with pytest.raises(ProtocolError, match="does not fit the 100 bytes announced"):
        assembled([*frames[:place], (frame, bytes(left + more))])
    assert assembled([*frames[:place], (frame, bytes(left))]) is not None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_chunk_is_refused_for_it_would_never_end(place):
    frames = framed()
    with pytest.raises(ProtocolError, match="a chunk of 0 bytes"):
        assembled([*frames[:place], (frames[place][0], b"")])


def test_a_tensor_announced_twice_or_never_is_refused():
    frames = framed()
    again = changed(frames[1][0])
    again.tensor.CopyFrom(frames[0][0].tensor)
    with pytest.raises(ProtocolError, match="announced in its first chunk"):
        assembled([frames[0], (again, frames[1][1])])
    never = changed(frames[0][0])
    never.ClearField("tensor")
    with pytest.raises(ProtocolError, match="announced in its first chunk"):
        assembled([(never, frames[0][1])])


def test_an_empty_tensor_is_one_frame_and_its_payload_must_be_empty():
    (frame, payload) = framed(b"")[0]
    assert bytes(assembled([(frame, payload)]).payload) == b""
    with pytest.raises(ProtocolError, match="does not fit the 0 bytes"):
        assembled([(frame, b"x")])


def test_half_a_tensor_is_no_boundary():
    assembler = Assembler(anything, Memory())
    assert assembler.between_tensors
    between = []
    for frame, payload in framed():
        assembler.add(frame, payload)
        between.append(assembler.between_tensors)
    assert between == [False, False, True]


def test_every_role_has_a_name_for_sentences_even_one_that_is_not():
    assert role_name(Role.ROLE_ERROR_GRADIENT) == "error gradient"
    unknown = next(number for number in count(1) if number not in Role.values())
    assert str(unknown) in role_name(unknown)
