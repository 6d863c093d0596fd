"""Layouts: our own are accepted, and absurd ones are refused before memory is taken."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bounds import MAX_DIMENSIONS
from shared.codec import (
    Encoded,
    aligned_buffer,
    check_layout,
    codec_by_name,
)
from shared.errors import ProtocolError
from tests.support.tensors import carried, tensors


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
    tensor = torch.ones((1,) * (MAX_DIMENSIONS - 1) + (3,))
    assert torch.equal(codec_by_name("raw").decode(carried(codec_by_name("raw").encode(tensor))), tensor)


@settings(deadline=None)
@given(tensor=tensors())
def test_layouts_that_we_send_are_accepted(tensor):
    encoded = codec_by_name("raw").encode(tensor)
    check_layout(encoded.shape, encoded.strides, 1 << 20)
