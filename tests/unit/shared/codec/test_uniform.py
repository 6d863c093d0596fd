"""The uniform codecs against paper 000, Eq. 2, and what we decided where the equation says nothing."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.codec import Encoded, aligned_buffer, codec_by_name, seed_stochastic_rounding
from shared.codec.bitpack import pack, packed_bytes, unpack
from shared.errors import ProtocolError
from shared.registry import codec_names
from tests.support.examples import examples
from tests.support.tensors import carried

BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-149
bit_widths = st.sampled_from(BITS)
endings = st.sampled_from(["", "-channel", "-stochastic", "-channel-stochastic"])
seeds = st.integers(0, 2**32 - 1)


def made(shape, seed=0, scale=1.0, offset=0.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale + offset


def through(name, tensor):
    codec = codec_by_name(name)
    return codec.decode(codec.encode(tensor))


def groups_of(tensor, by_channel):
    """The groups that share a range, as float64 vectors."""
    wide = tensor.detach().double()
    if by_channel and tensor.dim() > 1:
        return list(wide.transpose(0, 1).reshape(tensor.shape[1], -1))
    return [wide.reshape(-1)]


def levels_of(encoded, groups):
    return bytes(encoded.payload)[8 + 8 * groups :]


@st.composite
def features(draw):
    """Float32 tensors of every number of dimensions, contiguous or channels-last, of any size and place of the range."""
    shape = draw(st.lists(st.integers(1, 9), max_size=4))
    tensor = made(shape, draw(seeds), 10.0 ** draw(st.integers(-20, 20)), 0.0)
    offset = draw(st.sampled_from([0.0, 0.5, -3.0, 1000.0])) * float(tensor.abs().max())
    tensor = tensor + offset
    if draw(st.booleans()):
        tensor = tensor.relu()
    if tensor.dim() == 4 and draw(st.booleans()):
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def check_within_half_a_step(tensor, decoded, bits, by_channel, *, steps=0.5):
    for before, after in zip(groups_of(tensor, by_channel), groups_of(decoded, by_channel), strict=True):
        low, high = float(before.min()), float(before.max())
        step = (high - low) / (2**bits - 1)
        rounding = 2.0**-22 * (max(abs(low), abs(high)) + (high - low)) + TINY
        assert float((before - after).abs().max()) <= steps * step + rounding
        assert float(after.min()) >= low - rounding
        assert float(after.max()) <= high + rounding


# --- Eq. 2


@settings(deadline=None)
@given(tensor=features(), bits=bit_widths, ending=endings)
def test_no_value_moves_by_more_than_half_a_step(tensor, bits, ending):
    decoded = through(f"uniform{bits}{ending}", tensor)
    steps = 1.0 if "stochastic" in ending else 0.5
    check_within_half_a_step(tensor, decoded, bits, "channel" in ending, steps=steps)


@pytest.mark.parametrize("ending", ["", "-channel", "-stochastic", "-channel-stochastic"])
@pytest.mark.parametrize(("bits", "offset"), [(3, 0.0), (8, 3.0), (16, 0.0)])
@pytest.mark.parametrize(
    "shape",
    [(600_001,), (7, 5, 15_001), (2_001, 100, 3), (30, 2_001, 9), (1, 301, 2_001), (200_003, 3, 1), (3_301, 1, 13, 13)],
)
@pytest.mark.usefixtures("one_thread")
def test_tiles_do_not_show(shape, bits, ending, offset):
    """Tensors that take several tiles of one thread, whole ones and a rest, in rows of every length."""
    tensor = made(shape).relu() + offset
    for strided in (tensor, tensor.transpose(0, -1).contiguous().transpose(0, -1)):
        decoded = through(f"uniform{bits}{ending}", strided)
        steps = 1.0 if "stochastic" in ending else 0.5
        check_within_half_a_step(strided, decoded, bits, "channel" in ending, steps=steps)


@settings(deadline=None)
@given(tensor=features(), bits=bit_widths, by_channel=st.booleans())
def test_the_lowest_value_is_exact_and_the_highest_nearly(tensor, bits, by_channel):
    decoded = through(f"uniform{bits}{'-channel' * by_channel}", tensor)
    for before, after in zip(groups_of(tensor, by_channel), groups_of(decoded, by_channel), strict=True):
        assert float(after[before.argmin()]) == float(before.min())
        highest = float(before.max())
        assert abs(float(after[before.argmax()]) - highest) <= 2.0**-22 * max(abs(highest), abs(float(before.min())))


@pytest.mark.parametrize("bits", BITS)
def test_the_middle_between_two_levels_goes_to_the_even_one(bits):
    levels = 2**bits - 1
    middles = torch.arange(levels).float() + 0.5
    tensor = torch.cat([torch.tensor([0.0, float(levels)]), middles])
    assert torch.equal(through(f"uniform{bits}", tensor)[2:], middles.round())


@settings(deadline=None)
@given(tensor=features(), bits=bit_widths, by_channel=st.booleans())
def test_encoding_what_was_decoded_changes_no_level(tensor, bits, by_channel):
    codec = codec_by_name(f"uniform{bits}{'-channel' * by_channel}")
    groups = groups_of(tensor, by_channel)
    # the levels must be further apart than float32 can tell numbers of this size apart
    assume(all(g.max() - g.min() > 2.0**-20 * 2**bits * g.abs().max() for g in groups))
    once = codec.encode(tensor)
    again = codec.encode(codec.decode(once))
    assert levels_of(once, len(groups)) == levels_of(again, len(groups))


@settings(deadline=None)
@given(tensor=features(), by_channel=st.booleans())
def test_more_bits_never_make_it_worse(tensor, by_channel):
    ending = "-channel" * by_channel
    errors = [
        float((through(f"uniform{bits}{ending}", tensor) - tensor).double().abs().max()) for bits in (1, 2, 4, 8, 16)
    ]
    # 2^n - 1 divides 2^2n - 1, so each grid holds the one before it
    rounding = 2.0**-21 * float(tensor.double().abs().max())
    assert all(finer <= coarser + rounding for coarser, finer in itertools.pairwise(errors))


def test_a_channel_of_its_own_is_not_drowned_by_a_louder_one():
    tensor = torch.stack([made((4, 50), 1, scale=1e-3), made((4, 50), 2, scale=1e3)], dim=1)
    quiet = through("uniform4-channel", tensor)[:, 0] - tensor[:, 0]
    assert float(quiet.abs().max()) < 1e-3
    assert float((through("uniform4", tensor)[:, 0] - tensor[:, 0]).abs().max()) > 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bits", BITS)
def test_other_floats_lose_no_more_than_a_half_step_and_their_own_rounding(dtype, bits):
    tensor = made((5, 6, 7)).to(dtype)
    decoded = through(f"uniform{bits}-channel", tensor)
    assert decoded.dtype == dtype
    step = (tensor.double().amax((0, 2)) - tensor.double().amin((0, 2))) / (2**bits - 1)
    own = max(torch.finfo(dtype).eps, 2.0**-22) * float(tensor.abs().max())
    assert bool(((decoded.double() - tensor.double()).abs() <= step[None, :, None] / 2 + own).all())


def test_float64_beyond_float32_is_taken_as_the_largest_float32():
    tensor = torch.tensor([-1e300, 0.0, 1e300], dtype=torch.float64)
    assert through("uniform8", tensor)[[0, 2]].tolist() == [-LARGEST, LARGEST]


# --- what the equation leaves open


@settings(deadline=None)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), bits=bit_widths, ending=endings)
def test_a_constant_is_exact(value, bits, ending):
    tensor = torch.full((2, 3, 4), value)
    assert torch.equal(through(f"uniform{bits}{ending}", tensor), tensor)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("ending", ["", "-channel", "-stochastic", "-channel-stochastic"])
def test_a_nan_makes_its_group_nan_and_no_other(bits, ending):
    tensor = made((3, 4, 50))
    tensor[1, 2, 7] = math.nan
    tensor[2, 2, 8] = math.inf
    decoded = through(f"uniform{bits}{ending}", tensor)
    if "channel" not in ending:
        assert bool(decoded.isnan().all())
        return
    assert bool(decoded[:, 2].isnan().all())
    others = [0, 1, 3]
    check_within_half_a_step(tensor[:, others], decoded[:, others], bits, True, steps=1.0)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("ending", ["", "-channel", "-stochastic", "-channel-stochastic"])
def test_infinities_become_the_finite_extremes_of_their_group(bits, ending):
    tensor = made((3, 4, 50))
    tensor[0, 1, 0], tensor[1, 1, 1] = math.inf, -math.inf
    decoded = through(f"uniform{bits}{ending}", tensor)
    group = tensor[:, 1] if "channel" in ending else tensor
    finite = group[group.isfinite()]
    assert decoded[1, 1, 1] == finite.min()
    torch.testing.assert_close(decoded[0, 1, 0], finite.max())
    clamped = tensor.clamp(finite.min(), finite.max()) if "channel" not in ending else tensor.clone()
    clamped[:, 1] = tensor[:, 1].clamp(finite.min(), finite.max())
    check_within_half_a_step(clamped, decoded, bits, "channel" in ending, steps=1.0)


@pytest.mark.parametrize("values", [[math.inf], [-math.inf, -math.inf], [math.inf, -math.inf]])
def test_a_group_without_a_finite_value_is_nan(values):
    assert bool(through("uniform8", torch.tensor(values)).isnan().all())


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("name", ["uniform1", "uniform8-channel", "uniform16-stochastic"])
def test_nothing_is_sent_for_nothing(shape, name):
    codec = codec_by_name(name)
    assert codec.encode(torch.empty(shape)).payload.nbytes == codec.encoded_bytes(shape, torch.float32) == 8
    assert through(name, torch.empty(shape)).shape == shape


def test_a_scalar_is_exact():
    for ending in ("", "-channel"):
        assert through(f"uniform1{ending}", torch.tensor(-2.5)).item() == -2.5


@settings(deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    bits=bit_widths,
    ending=endings,
)
def test_any_finite_numbers_stay_finite_and_within_a_step(values, bits, ending):
    """The values include subnormal numbers, and ranges that float32 cannot hold."""
    tensor = torch.tensor(values, dtype=torch.float32)
    check_within_half_a_step(tensor, through(f"uniform{bits}{ending}", tensor), bits, False, steps=1.0)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-LARGEST, LARGEST),
        (0.0, LARGEST),
        (-LARGEST, 0.0),
        (0.0, TINY),
        (0.0, 300 * TINY),
        (-1e-38, 1e-38),
        (0.0, 1e-29),
    ],
)
def test_the_ends_of_float32_are_exact(bits, low, high):
    tensor = torch.tensor([low, high])
    assert through(f"uniform{bits}", tensor)[0] == tensor[0]
    torch.testing.assert_close(through(f"uniform{bits}", tensor)[1], tensor[1], rtol=2.0**-22, atol=0)


# --- stochastic rounding


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("ending", ["-stochastic", "-channel-stochastic"])
def test_the_mean_over_draws_is_the_value(bits, ending):
    torch.manual_seed(0)
    fractions = torch.tensor([0.0, 0.01, 0.25, 0.5, 0.9, 0.999])
    values = torch.cat([torch.tensor([0.0, 2.0**bits - 1]), fractions])
    count = 20_000
    decoded = through(
        f"uniform{bits}{ending}", values.repeat(count, 1) if "channel" not in ending else values.repeat(count, 1, 1)
    )
    rounded_up = decoded.reshape(count, -1)[:, 2:]
    assert set(rounded_up.unique().round(decimals=2).tolist()) == {0.0, 1.0}
    deviation = (fractions * (1 - fractions) / count).sqrt() + 2.0**-7 / count + 1e-6
    assert bool(((rounded_up.mean(0) - fractions).abs() <= 5 * deviation + (2.0**-8 if bits == 16 else 2.0**-16)).all())


@pytest.mark.parametrize("bits", BITS)
def test_a_value_on_a_level_is_never_moved_off_it(bits):
    levels = torch.arange(2**bits).float()
    for _ in range(20):
        assert torch.equal(through(f"uniform{bits}-stochastic", levels), levels)


def test_rounding_takes_nothing_from_torchs_own_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    through("uniform4-stochastic", made((300,)))
    assert torch.equal(torch.get_rng_state(), before), "dropout draws from it at the same time"


def test_the_seed_decides_and_rounding_to_nearest_takes_nothing_from_the_generator():
    tensor = made((300,))
    seed_stochastic_rounding(5)
    first = through("uniform4-stochastic", tensor)
    second = through("uniform4-stochastic", tensor)
    assert not torch.equal(first, second)
    seed_stochastic_rounding(5)
    through("uniform4", tensor)
    assert torch.equal(through("uniform4-stochastic", tensor), first)


# --- packing


@settings(deadline=None)
@given(count=st.integers(0, 1100), bits=st.integers(1, 7), seed=seeds)
def test_unpacking_gives_what_was_packed_in_the_fewest_bytes(count, bits, seed):
    values = torch.randint(0, 2**bits, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    packed = torch.full((packed_bytes(count, bits),), 0xAA, dtype=torch.uint8)
    pack(values, bits, out=packed)
    assert packed.numel() == math.ceil(count * bits / 8)
    unpacked = torch.full((count,), 0xAA, dtype=torch.uint8)
    unpack(packed, bits, out=unpacked)
    assert torch.equal(unpacked, values)


@settings(deadline=None)
@given(blocks=st.integers(0, 20), bits=st.integers(1, 7), seed=seeds)
def test_no_bit_is_wasted(blocks, bits, seed):
    """Every string of bytes is the packing of some values, so none could be shorter."""
    packed = torch.randint(0, 256, (blocks * bits,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    values = torch.empty(blocks * 8, dtype=torch.uint8)
    unpack(packed, bits, out=values)
    again = torch.empty_like(packed)
    pack(values, bits, out=again)
    assert torch.equal(again, packed)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("batch", [1, 7, 8, 9, 50])
def test_the_batch_need_not_be_divisible_by_eight(bits, batch):
    shape = (batch, 3, 5)
    assert codec_by_name(f"uniform{bits}").encoded_bytes(shape, torch.float32) == 16 + math.ceil(batch * 15 * bits / 8)
    in_channels = codec_by_name(f"uniform{bits}-channel").encoded_bytes(shape, torch.float32)
    assert in_channels == 8 + 3 * 8 + math.ceil(batch * 15 * bits / 8)
    check_within_half_a_step(made(shape), through(f"uniform{bits}", made(shape)), bits, False)


def test_two_bits_take_a_sixteenth():
    tensor = made((32, 64, 8, 8))
    payload = codec_by_name("uniform2").encode(tensor).payload.nbytes
    assert payload == tensor.nbytes // 16 + 16


# --- hostile payloads


@pytest.mark.parametrize("name", ["uniform8", "uniform3-channel"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(1.0, 0.0), (math.nan, 0.0), (0.0, math.nan), (0.0, math.inf), (-math.inf, 0.0), (math.inf, math.inf)],
)
def test_a_range_that_is_never_sent_is_refused(name, low, high):
    encoded = codec_by_name(name).encode(made((4, 2)))
    groups = 2 if "channel" in name else 1
    payload = aligned_buffer(encoded.payload.nbytes)
    payload[:] = encoded.payload
    ranges = np.frombuffer(payload, np.float32, count=2 * groups, offset=8).reshape(2, groups)
    ranges[:, -1] = low, high
    with pytest.raises(ProtocolError, match="range is infinite or reversed"):
        codec_by_name(name).decode(Encoded(name, encoded.dtype, encoded.shape, encoded.strides, payload))


@settings(deadline=None, max_examples=examples(200))
@given(
    bits=bit_widths,
    ending=endings,
    ranges=st.lists(st.floats(width=32), min_size=6, max_size=6),
    filling=st.binary(min_size=24, max_size=24),
)
def test_levels_of_any_bytes_decode_within_the_range_or_are_refused(bits, ending, ranges, filling):
    name = f"uniform{bits}{ending}"
    encoded = codec_by_name(name).encode(made((2, 3, 2)))
    groups = 3 if "channel" in ending else 1
    payload = aligned_buffer(encoded.payload.nbytes)
    payload[:8] = encoded.payload[:8]
    lows, highs = np.array(ranges[:groups], np.float32), np.array(ranges[3 : 3 + groups], np.float32)
    payload[8 : 8 + 8 * groups] = np.concatenate([lows, highs]).tobytes()
    payload[8 + 8 * groups :] = (filling * 2)[: payload.nbytes - 8 - 8 * groups]
    try:
        decoded = codec_by_name(name).decode(Encoded(name, encoded.dtype, encoded.shape, encoded.strides, payload))
    except ProtocolError:
        return
    for low, high, values in zip(lows, highs, groups_of(decoded, groups == 3), strict=True):
        if math.isnan(low):
            assert bool(values.isnan().all())
        else:
            slack = 2.0**-22 * max(abs(float(low)), abs(float(high)))
            assert float(low) - slack <= float(values.min())
            assert float(values.max()) <= float(high) + slack


@pytest.mark.parametrize("name", [name for name in codec_names() if name.startswith("uniform")])
def test_a_damaged_head_is_refused(name):
    codec = codec_by_name(name)
    encoded = codec.encode(made((3, 4)))
    for at in range(8):
        damaged = bytearray(encoded.payload)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError, match="begins with"):
            codec.decode(carried(encoded, damaged))
