"""Rules for every codec: strides, sizes, memory, and peers that send nonsense."""

import gc
import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.bounds import MAX_DIMENSIONS
from shared.codec import Encoded, aligned_buffer, check_layout, codec_by_name
from shared.errors import ConfigError, ProtocolError
from shared.registry import codec_names
from tests.support.examples import examples
from tests.support.tensors import (
    FLOATS,
    LOSSLESS,
    OTHERS,
    carried,
    is_dense,
    made,
    of_family,
    same_bits,
    tensors,
)

each_family = pytest.mark.parametrize(
    "family", dict.fromkeys(codec_by_name(name).spec.family for name in codec_names())
)


@settings(deadline=None)
@given(tensor=tensors(FLOATS + OTHERS))
def test_raw_gives_back_every_bit_and_stride_of_any_tensor(tensor):
    decoded = codec_by_name("raw").decode(carried(codec_by_name("raw").encode(tensor)))
    assert decoded.shape == tensor.shape
    assert decoded.stride() == tensor.stride()
    assert same_bits(decoded, tensor)


@each_family
@given(tensor=tensors(), data=st.data())
def test_every_codec_gives_back_dtype_shape_and_strides(family, tensor, data):
    codec = data.draw(of_family(family))
    encoded = codec.encode(tensor)
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


@each_family
@given(data=st.data(), dtype=st.sampled_from(FLOATS), at=st.integers(0, 11))
def test_a_nan_is_not_hidden(family, data, dtype, at):
    codec, tensor = data.draw(of_family(family)), made((12,), dtype, 0)
    tensor[at] = torch.nan
    assert codec.decode(carried(codec.encode(tensor.view(3, 4)))).view(-1)[at].isnan()


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


@each_family
@given(shape=st.lists(st.integers(0, 9), max_size=4), dtype=st.sampled_from(FLOATS), order=st.randoms(), data=st.data())
def test_encoded_bytes_is_exact_for_a_dense_tensor(family, shape, dtype, order, data):
    tensor = torch.zeros(shape, dtype=dtype)
    dims = list(range(len(shape)))
    order.shuffle(dims)
    inverse = [dims.index(dim) for dim in range(len(shape))]
    permuted = tensor.permute(dims).contiguous().permute(inverse)
    codec = data.draw(of_family(family))
    assert codec.encode(permuted).payload.nbytes == codec.encoded_bytes(tuple(shape), dtype)


@each_family
@given(tensor=tensors(expanded=True), data=st.data())
def test_encoded_bytes_is_a_bound_for_any_tensor(family, tensor, data):
    codec = data.draw(of_family(family))
    assert codec.encode(tensor).payload.nbytes <= codec.encoded_bytes(tensor.shape, tensor.dtype)


def test_an_expanded_dimension_is_sent_once():
    tensor = torch.ones(7, 1).expand(7, 1000)
    assert codec_by_name("raw").encode(tensor).payload.nbytes == 28


def test_a_gap_is_not_sent():
    assert codec_by_name("raw").encode(torch.ones(8, 100)[:, :3]).payload.nbytes == 8 * 3 * 4


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

    thread = threading.Thread(target=work)  # A thread of its own has no earlier state.
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


@pytest.mark.parametrize("name", [name for name in codec_names() if name != "raw"])
@pytest.mark.parametrize("dtype", OTHERS)
def test_only_raw_carries_other_types_than_floats(name, dtype):
    with pytest.raises(ConfigError, match=f"codec {name} carries floating-point tensors, not {dtype}; use raw"):
        codec_by_name(name).encode(torch.zeros(3, dtype=dtype))
    encoded = codec_by_name(name).encode(torch.zeros(3))
    with pytest.raises(ProtocolError, match="floating-point"):
        codec_by_name(name).decode(carried(encoded, dtype=dtype))


def test_tensors_that_are_not_plain_are_refused():
    with pytest.raises(ConfigError, match="plain"):
        codec_by_name("raw").encode(torch.ones(3, 3).to_sparse())
    codec_by_name("raw").encode(torch.ones((1,) * MAX_DIMENSIONS))
    with pytest.raises(ConfigError, match="9 dimensions"):
        codec_by_name("raw").encode(torch.ones((1,) * (MAX_DIMENSIONS + 1)))


@each_family
@given(tensor=tensors(), change=st.sampled_from([-1, 1, 64]), data=st.data())
def test_a_payload_of_the_wrong_length_is_refused(family, tensor, change, data):
    codec = data.draw(of_family(family))
    encoded = codec.encode(tensor)
    length = encoded.payload.nbytes + change
    if length >= 0:
        with pytest.raises(ProtocolError, match=f"has {length} bytes"):
            codec.decode(carried(encoded, bytes(length)))


def test_booleans_are_zero_or_one():
    encoded = codec_by_name("raw").encode(torch.tensor([True, False]))
    assert codec_by_name("raw").decode(carried(encoded, b"\x01\x00")).tolist() == [True, False]
    with pytest.raises(ProtocolError, match="booleans"):
        codec_by_name("raw").decode(carried(encoded, b"\x02\x00"))


@each_family
@settings(max_examples=examples(200))
@given(
    data=st.data(),
    dtype=st.sampled_from(FLOATS + OTHERS),
    shape=st.lists(st.integers(-1, 6) | st.integers(), max_size=5).map(tuple),
    strides=st.lists(st.integers(-1, 40) | st.integers(), max_size=5).map(tuple),
    filling=st.binary(max_size=400),
    fits=st.booleans(),
)
def test_whatever_a_peer_claims_the_answer_is_a_tensor_or_a_protocol_error(
    family, data, dtype, shape, strides, filling, fits
):
    codec = data.draw(of_family(family))
    if fits:  # nonsense passes the check of the length
        strides = (strides + (1,) * len(shape))[: len(shape)]
        try:
            check_layout(shape, strides, 4096)
        except ProtocolError:
            return
        filling = filling.ljust(codec.encoded_bytes(shape, dtype), b"\0")[: codec.encoded_bytes(shape, dtype)]
    payload = aligned_buffer(len(filling))
    payload[:] = filling
    try:
        decoded = codec.decode(Encoded(codec.name, dtype, shape, strides, payload))
    except ProtocolError:
        return
    assert (decoded.dtype, tuple(decoded.shape), decoded.stride()) == (dtype, shape, strides)


def test_the_strategy_makes_tensors_with_gaps_and_without():
    seen = set()

    @settings(deadline=None, max_examples=examples(200), database=None)
    @given(tensor=tensors())
    def look(tensor):
        seen.add((is_dense(tensor), tensor.is_contiguous()))

    look()
    assert {(True, True), (True, False), (False, False)} <= seen
