"""What holds for every codec: strides, sizes, memory, and peers that send nonsense."""

import gc
import math
import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.codec import (
    Encoded,
    aligned_buffer,
    bit_widths,
    check_layout,
    codec_by_name,
    codec_names,
    codec_of_bits,
)
from shared.codec.layout import MAX_DIMS
from shared.errors import ConfigError, ProtocolError

LOSSLESS = tuple(name for name in codec_names() if not codec_by_name(name).spec.lossy)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
names = st.sampled_from(codec_names())
seeds = st.integers(0, 2**32 - 1)


def made(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).mul(10).to(dtype)


@st.composite
def tensors(draw, dtypes=FLOATS, expanded=True):
    """Tensors dense and not: dimensions in any order, every second element, a part of a larger one, expanded."""
    shape = draw(st.lists(st.integers(0, 5), max_size=5))
    tensor = made(shape, draw(st.sampled_from(dtypes)), draw(seeds))
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        dim = draw(st.integers(0, len(shape) - 1))
        change = draw(st.sampled_from(["none", "step", "part", *(["expand"] if expanded else [])]))
        if change == "step":
            tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
        elif change == "part" and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 1, tensor.shape[dim] - 1)
        elif change == "expand":
            tensor = tensor.unsqueeze(dim).expand(*tensor.shape[:dim], 3, *tensor.shape[dim:])
    return tensor


def is_dense(tensor):
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) == tensor.numel()


def bits_of(tensor):
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype)
    dense.view(tensor.shape).copy_(tensor)
    return bytes(dense.view(torch.uint8).numpy())


def same_bits(one, other):
    return one.dtype == other.dtype and bits_of(one) == bits_of(other)


def carried(encoded, payload=None, **changes):
    """The description and the bytes as a peer receives them."""
    received = aligned_buffer(encoded.payload.nbytes if payload is None else len(payload))
    received[:] = encoded.payload if payload is None else payload
    fields = {name: getattr(encoded, name) for name in ("codec", "dtype", "shape", "strides")}
    return Encoded(**(fields | changes), payload=received)


# --- strides and values


@settings(deadline=None)
@given(tensor=tensors(FLOATS + OTHERS))
def test_raw_gives_back_every_bit_and_stride_of_any_tensor(tensor):
    decoded = codec_by_name("raw").decode(carried(codec_by_name("raw").encode(tensor)))
    assert decoded.shape == tensor.shape
    assert decoded.stride() == tensor.stride()
    assert same_bits(decoded, tensor)


@settings(deadline=None)
@given(tensor=tensors(), name=names)
def test_every_codec_gives_back_dtype_shape_and_strides(tensor, name):
    codec = codec_by_name(name)
    encoded = codec.encode(tensor)
    assert encoded.codec == name
    decoded = codec.decode(carried(encoded))
    assert (decoded.dtype, decoded.shape, decoded.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


@settings(deadline=None)
@given(words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), name=st.sampled_from(LOSSLESS))
@example(words=[0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x80000000, 0x00000001, 0xFF800000], name="fp32")
def test_float32_is_lossless_down_to_the_payload_of_a_nan(words, name):
    tensor = torch.tensor(words, dtype=torch.uint32).view(torch.float32)
    assert same_bits(codec_by_name(name).decode(carried(codec_by_name(name).encode(tensor))), tensor)


@settings(deadline=None)
@given(tensor=tensors((torch.float16, torch.bfloat16)))
def test_fp32_is_lossless_for_narrower_floats(tensor):
    assert same_bits(codec_by_name("fp32").decode(carried(codec_by_name("fp32").encode(tensor))), tensor)


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_loses_something_where_it_says_so_and_only_there(name):
    codec, tensor = codec_by_name(name), made((64, 16), torch.float32, 1)
    assert same_bits(codec.decode(carried(codec.encode(tensor))), tensor) is not codec.spec.lossy


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_draws_random_numbers_where_it_says_so_and_only_there(name):
    codec, tensor = codec_by_name(name), made((64, 16), torch.float32, 1)
    assert (bytes(codec.encode(tensor).payload) != bytes(codec.encode(tensor).payload)) is codec.spec.stochastic


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_makes_as_many_bits_of_an_element_as_it_says(name):
    codec, elements = codec_by_name(name), 1 << 16
    assert round(codec.encoded_bytes((elements,), torch.float32) * 8 / elements) == codec.spec.bits


def test_in_a_family_every_width_is_there_once():
    specs = [codec_by_name(name).spec for name in codec_names()]
    assert len({(spec.family, spec.bits) for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("bits", "like", "name"),
    [
        (32, "fp32", "fp32"),
        (8, "fp32", "uniform8"),
        (4, "uniform8-channel", "uniform4-channel"),
        (8, "uniform8-channel", "uniform8-channel"),
        (32, "uniform8", "fp32"),
        (32, "fp16", "fp32"),
        (16, "fp32", "uniform16"),
        (16, "bf16", "bf16"),
    ],
)
def test_other_bits_are_of_the_same_family_or_of_a_common_one(bits, like, name):
    assert codec_of_bits(bits, like) == name


@given(bits=st.integers(0, 40), like=names)
def test_every_width_there_is_can_be_had_and_no_other(bits, like):
    if bits in bit_widths():
        assert codec_by_name(codec_of_bits(bits, like)).spec.bits == bits
    else:
        with pytest.raises(ConfigError, match=f"no codec has {bits} bits an element; there are 1, 2, 3"):
            codec_of_bits(bits, like)


def test_channels_last_stays_channels_last():
    tensor = made((2, 3, 4, 5), torch.float32, 0).to(memory_format=torch.channels_last)
    for name in codec_names():
        decoded = codec_by_name(name).decode(carried(codec_by_name(name).encode(tensor)))
        assert decoded.is_contiguous(memory_format=torch.channels_last)


def test_elements_that_overlap_are_sent_as_a_contiguous_copy():
    tensor = made((6,), torch.float32, 0).unfold(0, 3, 1)
    encoded = codec_by_name("raw").encode(tensor)
    assert encoded.strides == (3, 1)
    assert torch.equal(codec_by_name("raw").decode(encoded), tensor)


@settings(deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=4), name=names, dtype=st.sampled_from(FLOATS), order=st.randoms())
def test_encoded_bytes_is_exact_for_a_dense_tensor(shape, name, dtype, order):
    tensor = torch.zeros(shape, dtype=dtype)
    dims = list(range(len(shape)))
    order.shuffle(dims)
    inverse = [dims.index(dim) for dim in range(len(shape))]
    permuted = tensor.permute(dims).contiguous().permute(inverse)
    codec = codec_by_name(name)
    assert codec.encode(permuted).payload.nbytes == codec.encoded_bytes(shape, dtype)


@settings(deadline=None)
@given(tensor=tensors(expanded=True), name=names)
def test_encoded_bytes_is_a_bound_for_any_tensor(tensor, name):
    codec = codec_by_name(name)
    assert codec.encode(tensor).payload.nbytes <= codec.encoded_bytes(tensor.shape, tensor.dtype)


def test_an_expanded_dimension_is_sent_once():
    tensor = torch.ones(7, 1).expand(7, 1000)
    assert codec_by_name("raw").encode(tensor).payload.nbytes == 28


def test_a_gap_is_not_sent():
    assert codec_by_name("raw").encode(torch.ones(8, 100)[:, :3]).payload.nbytes == 8 * 3 * 4


# --- narrowing


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@settings(deadline=None)
@given(tensor=tensors((torch.float32, torch.float64)))
@example(tensor=torch.tensor([65519.0]))
def test_narrowing_rounds_as_torch_does(name, dtype, tensor):
    assert same_bits(codec_by_name(name).decode(codec_by_name(name).encode(tensor)), tensor.to(dtype).to(tensor.dtype))


@pytest.mark.parametrize(
    ("name", "source", "largest"),
    [
        ("fp16", torch.float32, torch.finfo(torch.float16).max),
        ("fp16", torch.bfloat16, torch.finfo(torch.float16).max),
        ("bf16", torch.float32, torch.finfo(torch.bfloat16).max),
        ("fp32", torch.float64, torch.finfo(torch.float32).max),
    ],
)
def test_narrowing_keeps_the_finite_finite_and_nothing_else(name, source, largest):
    beyond = torch.finfo(source).max
    tensor = torch.tensor([beyond, -beyond, math.inf, -math.inf, math.nan, 1.0], dtype=source)
    decoded = codec_by_name(name).decode(codec_by_name(name).encode(tensor))
    expected = torch.tensor([largest, -largest, math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64)
    torch.testing.assert_close(decoded.double(), expected.to(source).double(), rtol=0, atol=0, equal_nan=True)


# --- memory


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_dense_tensor_is_neither_copied_on_the_way_out_nor_on_the_way_in(name, memory_format):
    tensor = made((2, 3, 4, 5), torch.float32, 0).to(memory_format=memory_format)
    encoded = codec_by_name(name).encode(tensor)
    assert torch.frombuffer(encoded.payload, dtype=torch.float32).data_ptr() == tensor.data_ptr()
    received = carried(encoded)
    assert (
        codec_by_name(name).decode(received).data_ptr()
        == torch.frombuffer(received.payload, dtype=torch.uint8).data_ptr()
    )


def test_the_payload_outlives_the_tensor():
    encoded = codec_by_name("fp32").encode(torch.full((100_000,), 3.0))
    gc.collect()
    overwrites = [torch.zeros(100_000) for _ in range(4)]
    assert torch.equal(codec_by_name("fp32").decode(encoded), torch.full((100_000,), 3.0))
    assert len(overwrites) == 4


@pytest.mark.parametrize("name", codec_names())
def test_payloads_are_bytes_in_a_row(name):
    payload = codec_by_name(name).encode(made((3, 4), torch.float32, 1).t()).payload
    assert (payload.format, payload.ndim, payload.contiguous, payload.nbytes) == ("B", 1, True, len(payload))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_000])
def test_a_receive_buffer_is_writable_and_aligned(size):
    buffer = aligned_buffer(size)
    assert (buffer.nbytes, buffer.readonly, buffer.format) == (size, False, "B")
    if size:
        assert torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() % 64 == 0


@pytest.mark.parametrize("name", codec_names())
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_payload_that_cannot_be_used_in_place_is_copied_to_where_it_can(name, offset):
    codec, tensor = codec_by_name(name), made((5, 6), torch.float32, 2)
    encoded = codec.encode(tensor)
    buffer = aligned_buffer(encoded.payload.nbytes + 64)[offset : offset + encoded.payload.nbytes]
    buffer[:] = encoded.payload
    expected = codec.decode(encoded)
    for payload in (buffer, buffer.toreadonly(), memoryview(bytes(buffer))):
        decoded = codec.decode(Encoded(name, tensor.dtype, encoded.shape, encoded.strides, payload))
        assert torch.equal(decoded, expected)
        assert decoded.data_ptr() % 64 == 0
    sent = bytes(encoded.payload)
    decoded = codec.decode(Encoded(name, tensor.dtype, encoded.shape, encoded.strides, buffer.toreadonly()))
    decoded += 1
    assert bytes(buffer) == sent


def test_tensors_that_need_a_gradient_are_sent_without_it():
    for name in codec_names():
        encoded = codec_by_name(name).encode(torch.randn(4, 70, requires_grad=True))
        assert not codec_by_name(name).decode(carried(encoded)).requires_grad


def test_a_thread_may_encode_for_inference_first_and_for_training_then():
    done = []

    def work():
        for mode in (True, False):
            with torch.inference_mode(mode):
                for name in codec_names():
                    codec_by_name(name).decode(carried(codec_by_name(name).encode(torch.randn(4, 200)))).add_(1)
            done.append(mode)

    thread = threading.Thread(target=work)  # a thread of its own, so that nothing is kept from before
    thread.start()
    thread.join()
    assert done == [True, False]


def test_two_threads_do_not_disturb_each_other():
    torch.set_num_threads(1)
    tensors_sent = [made((7, 9, 30 + n), torch.float32, n) for n in range(8)]
    codec = codec_by_name("uniform3-channel")
    alone = [codec.decode(codec.encode(tensor)) for tensor in tensors_sent]
    wrong = []

    def work(order):
        for _ in range(10):
            for at in order:
                if not torch.equal(codec.decode(codec.encode(tensors_sent[at])), alone[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=work, args=(order,)) for order in (range(8), range(7, -1, -1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what is refused


@pytest.mark.parametrize("name", [name for name in codec_names() if name != "raw"])
@pytest.mark.parametrize("dtype", OTHERS)
def test_only_raw_carries_what_is_not_a_float(name, dtype):
    with pytest.raises(ConfigError, match=f"codec {name} carries floating-point tensors, not {dtype}; use raw"):
        codec_by_name(name).encode(torch.zeros(3, dtype=dtype))
    encoded = codec_by_name(name).encode(torch.zeros(3))
    with pytest.raises(ProtocolError, match="floating-point"):
        codec_by_name(name).decode(carried(encoded, dtype=dtype))


def test_tensors_that_are_not_plain_are_refused():
    with pytest.raises(ConfigError, match="plain"):
        codec_by_name("raw").encode(torch.ones(3, 3).to_sparse())
    codec_by_name("raw").encode(torch.ones((1,) * MAX_DIMS))
    with pytest.raises(ConfigError, match="9 dimensions"):
        codec_by_name("raw").encode(torch.ones((1,) * (MAX_DIMS + 1)))


def test_an_unknown_name_is_answered_with_the_names_there_are():
    with pytest.raises(ConfigError, match=r"'uniform9' does not exist; there are raw, fp32, fp16, bf16, uniform1,"):
        codec_by_name("uniform9")
    bits = ("1", "2", "3", "4", "5", "6", "7", "8", "16")
    endings = ("", "-channel", "-stochastic", "-channel-stochastic")
    wanted = {"raw", "fp32", "fp16", "bf16"} | {f"uniform{n}{ending}" for n in bits for ending in endings}
    assert set(codec_names()) == wanted
    assert all(codec_by_name(name).name == name for name in codec_names())


@settings(deadline=None)
@given(name=names, tensor=tensors(), change=st.sampled_from([-1, 1, 64]))
def test_a_payload_of_the_wrong_length_is_refused(name, tensor, change):
    encoded = codec_by_name(name).encode(tensor)
    length = encoded.payload.nbytes + change
    if length >= 0:
        with pytest.raises(ProtocolError, match=f"has {length} bytes"):
            codec_by_name(name).decode(carried(encoded, bytes(length)))


@pytest.mark.parametrize(
    "name", [name for name in codec_names() if codec_by_name(name).spec.family.startswith("uniform")]
)
def test_a_damaged_head_is_refused(name):
    encoded = codec_by_name(name).encode(made((3, 4), torch.float32, 0))
    for at in range(8):
        damaged = bytearray(encoded.payload)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError, match="begins with"):
            codec_by_name(name).decode(carried(encoded, damaged))


def test_booleans_are_zero_or_one():
    encoded = codec_by_name("raw").encode(torch.tensor([True, False]))
    assert codec_by_name("raw").decode(carried(encoded, b"\x01\x00")).tolist() == [True, False]
    with pytest.raises(ProtocolError, match="booleans"):
        codec_by_name("raw").decode(carried(encoded, b"\x02\x00"))


@settings(deadline=None, max_examples=300)
@given(
    name=names,
    dtype=st.sampled_from(FLOATS + OTHERS),
    shape=st.lists(st.integers(-1, 6) | st.integers(), max_size=5),
    strides=st.lists(st.integers(-1, 40) | st.integers(), max_size=5),
    filling=st.binary(max_size=400),
    fits=st.booleans(),
)
def test_whatever_a_peer_claims_the_answer_is_a_tensor_or_a_protocol_error(name, dtype, shape, strides, filling, fits):
    codec = codec_by_name(name)
    if fits:  # let nonsense get further than the length
        strides = (strides + [1] * len(shape))[: len(shape)]
        try:
            check_layout(shape, strides, 4096)
        except ProtocolError:
            return
        filling = filling.ljust(codec.encoded_bytes(shape, dtype), b"\0")[: codec.encoded_bytes(shape, dtype)]
    payload = aligned_buffer(len(filling))
    payload[:] = filling
    try:
        decoded = codec.decode(Encoded(name, dtype, tuple(shape), tuple(strides), payload))
    except ProtocolError:
        return
    assert (decoded.dtype, list(decoded.shape), list(decoded.stride())) == (dtype, shape, strides)


@settings(deadline=None)
@given(tensor=tensors(), room=st.integers(-1, 1))
def test_a_layout_may_take_just_what_is_allowed(tensor, room):
    sizes = [max(1, size) for size in tensor.shape]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, tensor.stride(), strict=True))
    takes = max(span, math.prod(sizes)) * tensor.itemsize
    if room >= 0:
        check_layout(tensor.shape, tensor.stride(), takes + room, tensor.itemsize)
    else:
        with pytest.raises(ProtocolError, match=f"takes {takes} bytes; at most {takes - 1} are allowed"):
            check_layout(tensor.shape, tensor.stride(), takes - 1, tensor.itemsize)


@pytest.mark.parametrize(
    ("shape", "strides", "says"),
    [
        ((2, 3), (3,), "2 sizes and 1 strides"),
        ((1,) * 9, (1,) * 9, "9 sizes and 9 strides"),
        ((-1,), (1,), "from 0 to"),
        ((2,), (-1,), "from 0 to"),
        ((1,), (2**63,), "from 0 to"),
        ((2**63,), (1,), "from 0 to"),
        ((2**40, 2**40), (0, 0), "takes"),
        ((2**62, 2**62), (2**62, 1), "takes"),
        ((2,), (2**62,), "takes"),
        ((0, 2**40), (1, 1), "takes"),
        ((3, 3), (1, 1), "on top of each other"),
        ((3, 2), (2, 2), "on top of each other"),
    ],
)
def test_an_absurd_layout_is_refused_before_memory_is_taken(shape, strides, says):
    with pytest.raises(ProtocolError, match=says):
        check_layout(shape, strides, 1 << 20)
    with pytest.raises(ProtocolError, match=says):
        codec_by_name("raw").decode(Encoded("raw", torch.float32, shape, strides, aligned_buffer(0)))


def test_as_many_dimensions_as_allowed_are_decoded():
    tensor = torch.ones((1,) * (MAX_DIMS - 1) + (3,))
    assert torch.equal(codec_by_name("raw").decode(carried(codec_by_name("raw").encode(tensor))), tensor)


@settings(deadline=None)
@given(tensor=tensors())
def test_what_we_send_is_a_layout_that_we_accept(tensor):
    encoded = codec_by_name("raw").encode(tensor)
    check_layout(encoded.shape, encoded.strides, 1 << 20)


def test_the_strategy_makes_tensors_with_gaps_and_without():
    seen = set()

    @settings(deadline=None, max_examples=200, database=None)
    @given(tensor=tensors())
    def look(tensor):
        seen.add((is_dense(tensor), tensor.is_contiguous()))

    look()
    assert {(True, True), (True, False), (False, False)} <= seen
