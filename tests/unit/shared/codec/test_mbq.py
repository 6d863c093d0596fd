"""MBQ, compared with its literal form in paper 001, III-C, and our decisions where we depart from it."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edge_agent.data.named import load_dataset
from shared.codec import Encoded, aligned_buffer, codec_by_name
from shared.errors import ProtocolError
from shared.model.build import build_model
from tests.support.examples import examples
from tests.support.tensors import carried

BITS = (2, 3, 4)
LARGEST = torch.finfo(torch.float32).max
bit_widths = st.sampled_from(BITS)
seeds = st.integers(0, 2**32 - 1)


def through(name, tensor):
    codec = codec_by_name(name)
    return codec.decode(carried(codec.encode(tensor)))


def squared_error(name, tensor):
    return float((through(name, tensor).double() - tensor.double()).square().mean())


def normal(count, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


SHAPES_OF_NUMBERS = {
    "normal": lambda x: x,
    "relu": torch.relu,
    "sparse": lambda x: (x - 1).relu(),
    "swish": nn.functional.silu,
    "clipped": lambda x: (3 * x + 1).clamp(0, 6),
    "skewed": lambda x: x.exp(),
    "far from zero": lambda x: 1000 + x,
    "tiny": lambda x: x * 1e-30,
    "huge": lambda x: x * 1e30,
}
each_kind = pytest.mark.parametrize("kind", SHAPES_OF_NUMBERS)
each_width = pytest.mark.parametrize("bits", BITS)


class LiteralMbq:
    """The paper's quantiser: a codebook about zero, found greedily at the first batch and followed by a moving average."""

    def __init__(self, bits):
        self._bits, self._batch, self._alpha = bits, 0, None

    def __call__(self, tensor):
        x = tensor.reshape(-1).double().numpy()
        if self._alpha is None:
            left, columns, alpha = x, [], []
            for _ in range(self._bits):
                columns.append(np.where(left >= 0, 1.0, -1.0))
                alpha.append(np.abs(left).mean())
                left = left - alpha[-1] * columns[-1]
            chosen, self._alpha = np.stack(columns, 1), np.array(alpha)
        else:
            rows = np.array(list(itertools.product((-1.0, 1.0), repeat=self._bits)))
            chosen = rows[np.abs(x[:, None] - rows @ self._alpha).argmin(1)]
            now = np.linalg.lstsq(chosen.T @ chosen, chosen.T @ x, rcond=None)[0]
            beta = min(0.9, (1 + self._batch) / (10 + self._batch))
            self._alpha = beta * self._alpha + (1 - beta) * now
        self._batch += 1
        sent = chosen @ self._alpha
        return torch.from_numpy(sent - (sent - x).mean()).view(tensor.shape)


# --- size


@given(shape=st.lists(st.integers(1, 9), max_size=4), bits=bit_widths)
def test_the_size_is_a_head_the_coefficients_and_the_bits(shape, bits):
    count = math.prod(shape)
    expected = 8 + 4 * (bits + 1) + math.ceil(count * bits / 8)
    codec = codec_by_name(f"mbq{bits}")
    assert codec.encode(torch.ones(shape)).payload.nbytes == codec.encoded_bytes(shape, torch.float32) == expected


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
@each_width
def test_nothing_is_sent_for_nothing(shape, bits):
    codec = codec_by_name(f"mbq{bits}")
    assert codec.encode(torch.empty(shape)).payload.nbytes == codec.encoded_bytes(shape, torch.float32) == 8
    assert through(f"mbq{bits}", torch.empty(shape)).shape == shape


# --- error


@pytest.mark.parametrize(("bits", "most"), [(2, 0.121), (3, 0.0375), (4, 0.0116)])
@pytest.mark.parametrize("count", [50_000, 1_000_000])
def test_the_squared_error_on_a_normal_distribution(bits, most, count):
    assert squared_error(f"mbq{bits}", normal(count)) <= most


@each_kind
@each_width
@pytest.mark.parametrize("count", [1_000, 300_000])
def test_it_is_nearer_than_uniform_of_that_width(kind, bits, count):
    numbers = SHAPES_OF_NUMBERS[kind](normal(count, seed=bits))
    assert squared_error(f"mbq{bits}", numbers) < squared_error(f"uniform{bits}", numbers)


@each_kind
@given(seed=seeds, count=st.integers(100, 3000))
@settings(deadline=None, max_examples=examples(10))
def test_more_bits_are_nearer(kind, seed, count):
    numbers = SHAPES_OF_NUMBERS[kind](normal(count, seed))
    errors = [squared_error(f"mbq{bits}", numbers) for bits in BITS]
    assert errors == sorted(errors, reverse=True)


@each_kind
@each_width
def test_the_mean_stays(kind, bits):
    """The offset already contains the amount that the paper's receiver subtracts."""
    numbers = SHAPES_OF_NUMBERS[kind](normal(40_000)).double()
    moved = float(through(f"mbq{bits}", numbers.float()).double().mean() - numbers.mean())
    assert abs(moved) <= 0.01 * float(numbers.std())


@each_width
def test_eight_numbers_in_a_million_that_are_far_away_are_not_lost(bits):
    """No sample contains them, and they cause all of the error if a codebook lacks them."""
    numbers = normal(1_000_000)
    numbers[::125_001] = 1000.0
    decoded = through(f"mbq{bits}", numbers)
    assert float((decoded[::125_001] - 1000).abs().max()) < 50
    assert squared_error(f"mbq{bits}", numbers) < squared_error(f"uniform{bits}", numbers)


@each_kind
@each_width
def test_a_fit_to_a_sample_is_nearly_as_good_as_one_to_all(kind, bits, monkeypatch):
    numbers = SHAPES_OF_NUMBERS[kind](normal(1_000_000, seed=bits))
    sampled = squared_error(f"mbq{bits}", numbers)
    monkeypatch.setattr("shared.codec.numbers.SAMPLE", numbers.numel())
    assert sampled <= 1.02 * squared_error(f"mbq{bits}", numbers)


@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_levels_part_groups_that_are_narrow_beside_their_distance(count):
    """Two levels for each group leave at least 0.3634 of its variance as error (Lloyd-Max at one bit)."""
    group = 1.3 + 1e-3 * normal(count // 2)
    numbers = torch.cat([group, -group])
    assert squared_error("mbq2", numbers) <= 0.38e-6


def test_numbers_at_both_ends_of_float32_are_fitted():
    numbers = normal(100_000).clamp(-4, 4) * (LARGEST / 4)
    scaled = (through("mbq4", numbers).double() - numbers.double()) / LARGEST
    assert float(scaled.square().mean()) * 16 <= 0.0116


@pytest.mark.parametrize("channels", [3, 7, 64])
@each_width
def test_the_sampling_follows_no_stride(channels, bits):
    """The channels are channels-last and differ in size, so that each comes back at a fixed distance."""
    numbers = normal(channels * 30_000, seed=1).view(-1, channels) * torch.arange(1, channels + 1)
    whole = squared_error(f"mbq{bits}", numbers)
    shuffled = numbers.view(-1)[torch.randperm(numbers.numel(), generator=torch.Generator().manual_seed(2))]
    assert whole == pytest.approx(squared_error(f"mbq{bits}", shuffled), rel=0.01)


def features_of_a_trained_network(factory, kwargs):
    """Return the output of each block of a network on four batches, after an epoch of handwritten digits."""
    digits = load_dataset("edge_agent.data:digits", {"split": "train"})
    images = torch.stack([digits[index][0] for index in range(1024)])
    labels = torch.tensor([int(digits[index][1]) for index in range(1024)])
    network = build_model(factory, kwargs, seed=0).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for batch in torch.arange(1024).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
    features = {}
    for name, module in network.named_modules():
        if name and name.count(".") < 2 and "pool" not in name:
            module.register_forward_hook(lambda _m, _i, out, name=name: features.setdefault(name, []).append(out))
    with torch.no_grad():
        for batch in torch.arange(256).split(64):
            network(images[batch])
    return features


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("factory", "kwargs"),
    [
        ("shared.model.zoo:residual_cnn", {"width": 8, "blocks": 2}),
        ("shared.model.zoo:separable_cnn", {"channels": 1, "width": 8}),
        ("shared.model.zoo:mlp", {}),
    ],
)
def test_features_of_a_trained_network_are_nearer_than_uniform_and_the_papers_form(factory, kwargs):
    """A fit descends to the least error near its start. On a small batch another start may find less, on all together not."""
    features = features_of_a_trained_network(factory, kwargs)
    assert len(features) > 3
    for bits, (name, batches) in itertools.product(BITS, features.items()):
        literal, ours, others = LiteralMbq(bits), [], []
        for batch in batches:
            papers = float((literal(batch) - batch.double()).square().mean())
            ours.append(squared_error(f"mbq{bits}", batch))
            others.append(min(papers, squared_error(f"uniform{bits}", batch)))
            assert ours[-1] <= 1.05 * others[-1], (name, bits)
        # They are equal on pixels, which lie on a grid; float32's rounding decides there.
        assert sum(ours) <= (1 + 1e-6) * sum(others), (name, bits)


# --- levels


@pytest.mark.parametrize("kind", [kind for kind in SHAPES_OF_NUMBERS if kind != "skewed"])
@each_width
def test_decoded_values_are_encoded_without_loss(kind, bits):
    """All 2^n sums occur, except in the skewed numbers. Only float32's rounding remains."""
    numbers = SHAPES_OF_NUMBERS[kind](normal(20_000))
    once = through(f"mbq{bits}", numbers)
    again = through(f"mbq{bits}", once)
    torch.testing.assert_close(again, once, rtol=1e-5, atol=1e-5 * float(once.abs().max()))


@each_kind
@each_width
def test_each_number_goes_to_the_nearest_of_the_sums_and_each_sum_is_one(kind, bits):
    numbers = SHAPES_OF_NUMBERS[kind](normal(5000))
    encoded = codec_by_name(f"mbq{bits}").encode(numbers)
    offset, *coefficients = np.frombuffer(encoded.payload, np.float32, count=1 + bits, offset=8).astype(np.float64)
    sums = [offset + np.dot(row, coefficients) for row in itertools.product((-1, 1), repeat=bits)]
    levels = torch.tensor(sorted(sums), dtype=torch.float64)
    decoded = codec_by_name(f"mbq{bits}").decode(carried(encoded)).double()
    size = float(numbers.double().abs().max()) * 2.0**-22
    assert float((decoded[:, None] - levels).abs().amin(1).max()) <= size
    nearest = (numbers.double()[:, None] - levels).abs().amin(1)
    assert bool(((numbers.double() - decoded).abs() <= nearest + size).all())


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), bits=bit_widths)
@settings(deadline=None)
def test_a_constant_is_exact(value, bits):
    tensor = torch.full((2, 3, 4), value)
    assert torch.equal(through(f"mbq{bits}", tensor), tensor)


@each_width
def test_two_numbers_are_as_good_as_exact(bits):
    tensor = (normal(10_000) > 1).float() * 3 - 1
    torch.testing.assert_close(through(f"mbq{bits}", tensor), tensor, rtol=1e-6, atol=1e-6)


@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    bits=bit_widths,
)
@settings(deadline=None)
def test_any_finite_numbers_stay_finite_and_no_further_than_their_range(values, bits):
    """The values include subnormal numbers, and ranges that float32 cannot hold."""
    tensor = torch.tensor(values, dtype=torch.float32)
    decoded = through(f"mbq{bits}", tensor).double()
    low, high = float(tensor.double().min()), float(tensor.double().max())
    assert bool(decoded.isfinite().all())
    rounding = 2.0**-20 * max(abs(low), abs(high)) + 2.0**-146
    assert float((decoded - tensor.double()).abs().max()) <= (high - low) + rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@each_width
def test_other_floats_come_back_as_themselves(dtype, bits):
    tensor = normal(5000).to(dtype)
    decoded = through(f"mbq{bits}", tensor)
    assert decoded.dtype == dtype
    assert float((decoded.double() - tensor.double()).square().mean()) < {2: 0.13, 3: 0.04, 4: 0.013}[bits]


def test_float64_beyond_float32_is_taken_as_the_largest_float32():
    tensor = torch.tensor([-1e300, 1e300], dtype=torch.float64)
    torch.testing.assert_close(through("mbq3", tensor), tensor.clamp(-LARGEST, LARGEST), rtol=1e-6, atol=0.0)


# --- NaN and infinities


@each_width
def test_a_nan_makes_all_nan(bits):
    tensor = normal(500)
    tensor[3], tensor[4] = math.nan, math.inf
    assert bool(through(f"mbq{bits}", tensor).isnan().all())


@pytest.mark.parametrize("count", [500, 200_000])
@each_width
def test_infinities_are_the_finite_extremes(bits, count):
    tensor = normal(count)
    tensor[0], tensor[1] = math.inf, -math.inf
    finite = tensor[2:]
    assert torch.equal(through(f"mbq{bits}", tensor), through(f"mbq{bits}", tensor.clamp(finite.min(), finite.max())))


@pytest.mark.parametrize("values", [[math.inf], [-math.inf, -math.inf], [math.inf, -math.inf]])
def test_a_tensor_without_a_finite_value_is_nan(values):
    assert bool(through("mbq2", torch.tensor(values)).isnan().all())


# --- hostile payloads


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@each_width
def test_a_coefficient_that_is_not_finite_is_refused(bits, wrong):
    encoded = codec_by_name(f"mbq{bits}").encode(normal(64))
    for at in range(bits + 1):
        damaged = bytearray(encoded.payload)
        damaged[8 + 4 * at : 12 + 4 * at] = np.float32(wrong).tobytes()
        with pytest.raises(ProtocolError, match="a coefficient or the offset is NaN or infinite"):
            codec_by_name(f"mbq{bits}").decode(carried(encoded, damaged))


@pytest.mark.parametrize("other", [name for bits in BITS for name in (f"mbq{bits}", f"uniform{bits}")])
@each_width
def test_a_payload_of_another_codec_is_refused(bits, other):
    if other == f"mbq{bits}":
        return
    payload = codec_by_name(other).encode(normal(64)).payload
    with pytest.raises(ProtocolError, match=r"bytes; shape|begins with"):
        codec_by_name(f"mbq{bits}").decode(Encoded(f"mbq{bits}", torch.float32, (64,), (1,), payload))


def test_a_claim_of_much_memory_is_refused_by_its_size():
    for shape in ((1 << 40,), (1 << 29,)):
        with pytest.raises(ProtocolError, match=r"at most|has 40 bytes"):
            codec_by_name("mbq2").decode(Encoded("mbq2", torch.float32, shape, (1,), aligned_buffer(40)))


@each_width
def test_a_damaged_head_is_refused(bits):
    encoded = codec_by_name(f"mbq{bits}").encode(normal(12))
    for at in range(8):
        damaged = bytearray(encoded.payload)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError, match="begins with"):
            codec_by_name(f"mbq{bits}").decode(carried(encoded, damaged))


@given(bits=bit_widths, parameters=st.lists(st.floats(width=32), min_size=5, max_size=5), filling=st.binary(min_size=6))
@settings(deadline=None, max_examples=examples(100))
def test_any_coefficients_and_levels_decode_to_finite_numbers_or_are_refused(bits, parameters, filling):
    encoded = codec_by_name(f"mbq{bits}").encode(normal(12))
    sent = np.array(parameters[: 1 + bits], np.float32)
    payload = bytes(encoded.payload[:8]) + sent.tobytes()
    payload = (payload + filling).ljust(encoded.payload.nbytes, b"\0")[: encoded.payload.nbytes]
    try:
        decoded = codec_by_name(f"mbq{bits}").decode(carried(encoded, payload))
    except ProtocolError:
        assert not np.isfinite(sent).all()
        return
    assert bool(decoded.isfinite().all())
