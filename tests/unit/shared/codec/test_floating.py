"""Narrower floats: rounded as torch does, and kept finite."""

import math

import pytest
import torch
from hypothesis import example, given, settings

from shared.codec import (
    codec_by_name,
)
from tests.support.tensors import same_bits, tensors


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
