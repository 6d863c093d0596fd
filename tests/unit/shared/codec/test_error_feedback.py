"""Error feedback: paper 000, Alg. 1, and the factor that a mean over a batch needs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.codec import FeedbackMode, KeptError, codec_by_name, compensate, compression_error
from shared.registry import codec_names

seeds = st.integers(0, 2**32 - 1)


def made(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(error):
    return KeptError(error, (1.0,))


def whole(error):
    """Return the error as one tensor."""
    samples = -(-len(error.levels) // len(error.units))
    parts = zip(error.levels.split(samples), error.units, strict=True)
    return torch.cat([levels * unit for levels, unit in parts])


@settings(deadline=None)
@given(seed=seeds, batch=st.integers(1, 64))
def test_for_a_mean_over_a_batch_the_term_is_that_of_each_sample_alone(seed, batch):
    """B times the compensated gradient of the mean loss is the literal formula on the gradients of the samples."""
    of_samples, error = made(seed, batch, 5), exact(made(seed + 1, batch, 5))
    of_mean = compensate(of_samples / batch, error, batch)
    torch.testing.assert_close(of_mean * batch, compensate(of_samples, error, 1, FeedbackMode.LITERAL))


def test_the_literal_formula():
    gradient, error = torch.tensor([2.0, -3.0, 0.5]), exact(torch.tensor([0.1, 0.2, -1.0]))
    expected = torch.tensor([2.0 - 0.1 * 4.0, -3.0 - 0.2 * 9.0, 0.5 + 1.0 * 0.25])
    torch.testing.assert_close(compensate(gradient, error, 64, FeedbackMode.LITERAL), expected)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_it_recovers_the_gradient_where_the_hessian_is_the_squared_gradient(batch):
    """For the loss -log h, the second derivative is the first one squared: the remaining error is of third order."""
    feature = made(0, batch, 100).abs() + 1.0
    decoded = codec_by_name("uniform6").decode(codec_by_name("uniform6").encode(feature))
    error = compression_error(decoded.clone(), feature)
    true, received = -1 / (batch * feature), -1 / (batch * decoded)

    def distance(mode):
        return float((compensate(received, error, batch, mode) - true).norm())

    assert distance(FeedbackMode.BATCH) < 0.1 * distance(FeedbackMode.OFF)
    if batch == 64:  # The literal formula has almost no effect there.
        assert distance(FeedbackMode.LITERAL) > 0.95 * distance(FeedbackMode.OFF)


@settings(deadline=None)
@given(seed=seeds, mode=st.sampled_from(FeedbackMode))
def test_without_an_error_the_gradient_stays_and_it_is_never_written_to(seed, mode):
    gradient, error = made(seed, 3, 4), exact(made(seed + 1, 3, 4))
    before = gradient.clone()
    compensate(gradient, error, 3, mode)
    assert torch.equal(gradient, before)
    assert torch.equal(compensate(gradient, exact(torch.zeros(3, 4)), 3, mode), before)


def test_off_is_off():
    gradient = made(0, 3)
    assert compensate(gradient, exact(made(1, 3)), 3, FeedbackMode.OFF) is gradient


def test_the_modes_are_named_as_in_a_configuration():
    assert [mode.value for mode in FeedbackMode] == ["batch", "literal", "off"]


@pytest.mark.parametrize("name", codec_names())
@pytest.mark.parametrize("expanded", [False, True])
def test_the_error_is_the_difference_and_the_feature_stays(name, expanded):
    feature = made(0, 4, 3, 5).relu().requires_grad_()
    if expanded:
        feature = feature[:1].expand(4, 3, 5)
    before = feature.detach().clone()
    codec = codec_by_name(name)
    decoded = codec.decode(codec.encode(feature))
    expected = decoded.clone() - before
    error = compression_error(decoded, feature)
    assert torch.equal(error.levels * error.units[0], expected)
    assert torch.equal(feature.detach(), before)
    assert not error.levels.requires_grad


LARGE = 4, 3, 40_000
"""A megabyte and more; a sample has more than a part."""


@pytest.mark.parametrize("name", codec_names())
@pytest.mark.parametrize("form", ["dense", "channels last", "expanded", "half"])
def test_a_large_error_is_kept_in_8_bits_of_each_part(name, form):
    feature = made(0, *LARGE).relu() * torch.tensor([1e-3, 1.0, 10.0, 1e3])[:, None, None]
    if form == "channels last":
        feature = feature.view(4, 3, 200, 200).to(memory_format=torch.channels_last)
    if form == "expanded":
        feature = feature[:1].expand(4, 3, 40_000)
    if form == "half":
        feature = feature.half()
    before = feature.clone()
    codec = codec_by_name(name)
    decoded = codec.decode(codec.encode(feature))
    error = compression_error(decoded, feature)
    assert torch.equal(feature, before)
    assert error.levels.dtype == torch.int8
    assert len(error.units) == len(feature), "a part is a sample here"
    expected = decoded.float() - feature.float()
    for found, right in zip(whole(error), expected, strict=True):
        most = float(right.abs().max())
        assert float((found - right).abs().max()) <= most / 253
    if name == "bf16" and form == "dense":
        assert 0 < error.units[0] < 1e-4 * error.units[3], "each part has a unit of its own"


@pytest.mark.parametrize(("elements", "kept"), [(1 << 17, torch.float32), ((1 << 17) + 1, torch.int8)])
def test_up_to_half_a_megabyte_an_error_is_exact(elements, kept):
    feature = made(0, 1, elements)
    codec = codec_by_name("uniform8")
    assert compression_error(codec.decode(codec.encode(feature)), feature).levels.dtype == kept


@settings(deadline=None, max_examples=10)
@given(seed=seeds, samples=st.sampled_from([1, 3, 16, 17]), of_sample=st.sampled_from([16_384, 65_536, 300_000]))
def test_large_gradients_are_corrected_as_small_ones(seed, samples, of_sample):
    """Samples differ by their range, and the codec's error with it."""
    gradient, feature = made(seed, samples, of_sample), made(seed + 1, samples, of_sample)
    feature *= 10.0 ** (torch.arange(samples) % 4)[:, None]
    codec = codec_by_name("bf16")
    decoded = codec.decode(codec.encode(feature))
    before = gradient.clone()
    kept, error = compression_error(decoded, feature), decoded - feature
    compensated, expected = compensate(gradient, kept, samples), compensate(gradient, exact(error), samples)
    of_part = -(-samples // len(kept.units))
    for found, right, part, lost in zip(
        *(one.split(of_part) for one in (compensated, expected, gradient, error)), strict=True
    ):
        allowed = samples * part.square() * float(lost.abs().max()) / 250 + 1e-5 * right.abs()
        assert ((found - right).abs() <= allowed).all()
    assert torch.equal(gradient, before)
    scale = 1024.0
    torch.testing.assert_close(compensate(gradient * scale, kept.over(scale), samples), compensated * scale)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_computing_the_error_leaves_the_payload_unchanged(name, dtype):
    """Overlapping windows are encoded from a copy, like a feature of another device. The payload is that copy."""
    feature = made(0, 8, 64).to(dtype).unfold(1, 16, 8)
    codec = codec_by_name(name)
    encoding = codec.encode(feature)
    error = compression_error(codec.decode(encoding), feature)
    assert not error.levels.any()
    assert torch.equal(codec.decode(encoding), feature)


@pytest.mark.parametrize("name", codec_names())
@pytest.mark.parametrize("of_sample", [6, 80_000])
def test_an_infinite_element_of_a_feature_leaves_the_gradient_finite(name, of_sample):
    feature = made(0, 4, of_sample)
    feature[0, 1], feature[2, 3] = -math.inf, math.inf
    codec = codec_by_name(name)
    error = compression_error(codec.decode(codec.encode(feature)), feature)
    gradient = made(1, 4, of_sample)
    gradient[0, 1] = 0.0  # the feature after a mask
    compensated = compensate(gradient, error, 4)
    assert compensated.isfinite().all()
    assert compensated[0, 1] == 0
    assert compensated[2, 3] == gradient[2, 3]


@pytest.mark.parametrize("of_sample", [6, 80_000])
def test_a_diverged_feature_is_not_hidden(of_sample):
    feature = made(0, 4, of_sample)
    feature[1, 1] = math.nan
    codec = codec_by_name("uniform8")
    error = compression_error(codec.decode(codec.encode(feature)), feature)
    assert compensate(made(1, 4, of_sample), error, 4).isnan().any()
