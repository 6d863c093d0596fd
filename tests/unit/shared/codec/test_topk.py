"""The codec topk against sorting, and payloads that are never sent."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import Encoded, codec_by_name
from shared.codec.topk import SAMPLE
from shared.errors import ProtocolError
from shared.execution.residuals import Residuals
from tests.support.tensors import carried

BITS = (1, 2, 4, 8)


def through(name, tensor):
    codec = codec_by_name(name)
    return codec.decode(carried(codec.encode(tensor)))


def normal(count, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 4 * SAMPLE + 1, 300_000])
@pytest.mark.parametrize("shape_of_numbers", [lambda x: x, lambda x: x * 1e-30, torch.relu, lambda x: x.sort().values])
def test_the_largest_of_64_for_each_bit_arrive_and_no_other(bits, count, shape_of_numbers):
    tensor = shape_of_numbers(normal(count))
    received = through(f"topk{bits}", tensor)
    kept = -(-count * bits // 64)
    expected = tensor.abs().sort(descending=True).values[:kept]
    assert torch.equal(received.abs().sort(descending=True).values[:kept], expected)
    assert torch.equal(received[received != 0], tensor[received != 0])
    assert (received != 0).sum() <= kept


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_where_all_are_alike_as_many_arrive(value):
    received = through("topk4", torch.full((5 * SAMPLE,), value))
    assert received.sum() == value * 5 * SAMPLE * 4 / 64


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_goes_first_in_a_large_tensor_too(value):
    tensor = normal(10 * SAMPLE)
    tensor[12345] = value
    assert torch.equal(through("topk1", tensor)[12345], tensor[12345]) or through("topk1", tensor)[12345].isnan()


def test_a_column_that_a_sample_would_miss_arrives():
    rows = torch.zeros(SAMPLE, 8)
    rows[:, 3] = normal(SAMPLE)
    assert torch.equal(through("topk8", rows), rows), "an eighth is sent, and that is the column"


@given(
    numbers=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200),
    steps=st.integers(1, 80),
    bits=st.sampled_from(BITS),
)
def test_with_residuals_everything_arrives_in_time(numbers, steps, bits):
    residuals, gradient = Residuals(), torch.tensor(numbers)
    sent = sum(residuals.sent(f"topk{bits}", 0, {"gradient/w": gradient})["gradient/w"] for _ in range(steps))
    left = residuals.added(0, {"gradient/w": torch.zeros_like(gradient)})["gradient/w"]
    total = gradient.double() * steps
    assert torch.allclose(
        sent.double() + left.double(), total, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()) * steps
    )


def changed(encoded, places):
    payload = bytearray(encoded.payload)
    payload[: 4 * len(places)] = torch.tensor(places, dtype=torch.int64).to(torch.uint32).numpy().tobytes()
    return Encoded(encoded.codec, encoded.dtype, encoded.shape, encoded.strides, memoryview(payload))


@pytest.mark.parametrize("places", [[5, 5], [6, 5], [0, 128], [0, 2**32 - 1]])
def test_places_that_do_not_rise_or_lie_outside_are_refused(places):
    codec = codec_by_name("topk1")
    encoded = codec.encode(normal(128))
    assert codec.decode(changed(encoded, [0, 127])).count_nonzero() == 2
    with pytest.raises(ProtocolError, match="topk1: its places must rise and be less than 128"):
        codec.decode(changed(encoded, places))
