"""Tensors on the wire: they arrive unchanged, strides included. Announcements are judged before memory is taken."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.codec import aligned_buffer, codec_by_name
from shared.errors import DataError, IsthmusError, ProtocolError
from shared.model.spec import CROSSING_DTYPES
from shared.registry import codec_names
from shared.tensor_wire import check_encoding, from_wire, to_wire, torch_dtype, transmitted_shape, wire_dtype
from shared.transport.stream.framing import Assembler, TensorKey, chunks
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader

MIB = 1 << 20
DTYPES = {wire: torch_dtype(wire) for wire in DataType.values() if wire != DataType.DATA_TYPE_UNSPECIFIED}
ALL_DTYPES = tuple(DTYPES.values())
uint64 = st.integers(0, 2**64 - 1)


def filled(shape, dtype):
    """Return a tensor of distinct values, as far as the type has as many."""
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


@st.composite
def tensors(draw, dtypes=ALL_DTYPES):
    """Draw a tensor as torch code makes them: whole, permuted, sliced, expanded, channels-last, empty, of no dimension."""
    shape = draw(st.lists(st.integers(0, 4), max_size=5))
    tensor = filled(shape, draw(st.sampled_from(dtypes)))
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor[:, ::2] if tensor.dim() > 1 else tensor[::2]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(-1).expand(*tensor.shape, draw(st.integers(1, 3)))
    if tensor.dim() == 4 and draw(st.booleans()):
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def sent(tensor, codec="raw", chunk_bytes=17, max_bytes=MIB):
    """Send the tensor and return it as it arrives."""
    codec = codec_by_name(codec)
    memory = []

    def allocate(size):
        memory.append(size)
        return aligned_buffer(size)

    assembler = Assembler(lambda frame, _: check_encoding(frame, codec, max_bytes), allocate)
    for frame, payload in chunks(to_wire(codec.encode(tensor), TensorKey(3, Role.ROLE_FEATURE), 0), chunk_bytes):
        arrived = assembler.add(Frame.FromString(frame.SerializeToString()), bytes(payload))
    assert memory == [arrived.header.encoded_bytes]
    return codec.decode(from_wire(arrived))


def announced(**fields):
    """Build a frame that announces 6 x 4 floats, with changes in the fields named."""
    header = {
        "codec": "raw",
        "dtype": DataType.DATA_TYPE_FLOAT32,
        "shape": [6, 4],
        "strides": [4, 1],
        "encoded_bytes": 96,
    }
    return Frame(step=7, role=Role.ROLE_LABEL, tensor=TensorHeader(**{**header, **fields}))


def refused(frame, codec="raw", max_bytes=MIB):
    """Return the sentence with which an announcement is refused."""
    with pytest.raises(ProtocolError) as caught:
        check_encoding(frame, codec_by_name(codec), max_bytes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(tensors())
def test_a_tensor_arrives_as_it_was_sent_strides_and_all(tensor):
    arrived = sent(tensor)
    assert arrived.dtype == tensor.dtype
    assert arrived.shape == tensor.shape
    assert arrived.stride() == tensor.stride()
    assert torch.equal(arrived, tensor)


@given(tensors([torch.float32, torch.float16, torch.float64]), st.sampled_from(codec_names()))
def test_every_codec_announces_what_it_sends(tensor, codec):
    arrived = sent(tensor, codec)
    assert (arrived.dtype, arrived.shape, arrived.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


def named_layouts():
    image = filled((2, 3, 4, 5), torch.float32)
    return {
        "channels_last": image.contiguous(memory_format=torch.channels_last),
        "expanded": image[:, :1].expand(2, 7, 4, 5),
        "sliced": image[:, :, 1:3, ::2],
        "transposed": image.transpose(1, 3),
        "one number": torch.tensor(2.5),
        "empty": torch.empty(0, 3, 4),
    }


@pytest.mark.parametrize("layout", named_layouts())
@pytest.mark.parametrize("codec", ["raw", "fp32"])
def test_memory_formats_survive_because_they_choose_kernels(layout, codec):
    tensor = named_layouts()[layout]
    arrived = sent(tensor, codec)
    assert arrived.stride() == tensor.stride()
    assert torch.equal(arrived, tensor)
    if layout == "channels_last":
        assert arrived.is_contiguous(memory_format=torch.channels_last)


def test_an_expanded_dimension_is_sent_once():
    wide = torch.ones(3, 1).expand(3, 1000)
    assert to_wire(codec_by_name("raw").encode(wide), TensorKey(0, Role.ROLE_FEATURE), 0).header.encoded_bytes == 12
    assert transmitted_shape((3, 1000, 1), (1, 0, 0)) == (3, 1, 1)


def test_a_right_announcement_is_accepted_up_to_its_exact_size():
    check_encoding(announced(), codec_by_name("raw"), 96)
    assert "96 bytes" in refused(announced(), max_bytes=95)


def test_memory_for_an_expanded_tensor_is_counted_in_full():
    expanded = announced(shape=[6, 1000], strides=[1, 0], encoded_bytes=24)
    check_encoding(expanded, codec_by_name("raw"), 24_000)
    assert "24000 bytes" in refused(expanded, max_bytes=23_999)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"shape": [1 << 38], "strides": [1], "encoded_bytes": 1 << 40}, "at most 1048576 are allowed"),
        ({"shape": [1 << 38], "strides": [0], "encoded_bytes": 4}, "at most 1048576 are allowed"),
        ({"shape": [2**64 - 1, 2**64 - 1], "strides": [1, 1], "encoded_bytes": 4}, "2^63 - 1"),
        ({"shape": [2, 2], "strides": [1 << 40, 1], "encoded_bytes": 16}, "at most 1048576 are allowed"),
        ({"shape": [2, 2], "strides": [2**63, 1], "encoded_bytes": 16}, "2^63 - 1"),
        ({"shape": [8, 1 << 62, 0], "strides": [0, 0, 0], "encoded_bytes": 0}, "at most 1048576 are allowed"),
        ({"shape": [0, 1 << 62], "strides": [1, 1], "encoded_bytes": 0}, "at most 1048576 are allowed"),
        ({"shape": [6, 4], "strides": [1, 1]}, "on top of each other"),
        ({"shape": [6, 4], "strides": [4]}, "2 sizes and 1 strides"),
        ({"shape": [6], "strides": [4, 1]}, "1 sizes and 2 strides"),
        ({"shape": [1] * 9, "strides": [1] * 9, "encoded_bytes": 4}, "8 at most"),
        ({"encoded_bytes": 95}, "announces 95 bytes"),
        ({"encoded_bytes": 97}, "announces 97 bytes"),
        ({"encoded_bytes": 1 << 40}, "announces 1099511627776 bytes"),
        ({"codec": "fp16"}, "'raw' is agreed"),
        ({"codec": "x" * 1_000_000}, "'raw' is agreed"),
        ({"dtype": DataType.DATA_TYPE_UNSPECIFIED}, "not in the contract"),
        ({"dtype": 99}, "not in the contract"),
    ],
)
def test_absurd_announcements_are_refused_in_a_short_sentence(fields, says):
    sentence = refused(announced(**fields))
    assert says in sentence
    assert len(sentence) < 300


@given(
    st.lists(uint64, max_size=9),
    st.lists(uint64, max_size=9),
    uint64,
    st.integers(0, 12),
    st.sampled_from(codec_names()),
)
def test_whatever_is_accepted_takes_no_more_than_allowed(shape, strides, encoded_bytes, dtype, codec):
    frame = announced(shape=shape, strides=strides, encoded_bytes=encoded_bytes, dtype=dtype, codec=codec)
    try:
        check_encoding(frame, codec_by_name(codec), MIB)
    except ProtocolError:
        return
    assert_decodes_within(frame, codec, MIB)


@given(
    st.lists(st.integers(0, 6), max_size=5), st.data(), st.sampled_from(list(DTYPES)), st.sampled_from(codec_names())
)
def test_whatever_is_accepted_can_be_decoded_or_is_refused_in_words(shape, data, dtype, codec):
    strides = [data.draw(st.integers(0, 50)) for _ in shape]
    size = codec_by_name(codec).encoded_bytes(transmitted_shape(tuple(shape), tuple(strides)), DTYPES[dtype])
    frame = announced(shape=shape, strides=strides, encoded_bytes=size, dtype=dtype, codec=codec)
    try:
        check_encoding(frame, codec_by_name(codec), MIB)
    except ProtocolError:
        assume(False)
    assert_decodes_within(frame, codec, MIB, content=data.draw(st.binary(min_size=size, max_size=size)))


def assert_decodes_within(frame, codec, max_bytes, content=None):
    assert frame.tensor.encoded_bytes <= max_bytes
    assembler = Assembler(lambda *_: None, aligned_buffer)
    arrived = assembler.add(frame, content if content is not None else bytes(frame.tensor.encoded_bytes))
    try:
        decoded = codec_by_name(codec).decode(from_wire(arrived))
    except IsthmusError:
        return
    assert decoded.untyped_storage().nbytes() <= max_bytes
    assert decoded.numel() * decoded.itemsize <= max_bytes
    assert (tuple(decoded.shape), decoded.stride()) == (tuple(frame.tensor.shape), tuple(frame.tensor.strides))


def test_the_sentence_names_tensor_and_step():
    assert refused(announced(encoded_bytes=1)).startswith("the label of step 7: ")
    frame = announced(encoded_bytes=1)
    frame.role = 77
    assert "unknown role 77" in refused(frame)


def test_every_element_type_of_the_contract_is_torchs_and_back():
    assert {wire_dtype(dtype) for dtype in DTYPES.values()} == set(DTYPES)
    assert set(DTYPES.values()) == CROSSING_DTYPES


@pytest.mark.parametrize("dtype", [torch.uint16, torch.complex64])
def test_a_type_that_the_contract_has_not_is_the_senders_mistake(dtype):
    with pytest.raises(DataError, match=str(dtype)):
        wire_dtype(dtype)
