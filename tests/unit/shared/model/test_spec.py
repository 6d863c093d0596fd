"""Tensor kinds, and the example inputs that a command line names."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ModelError
from shared.model.spec import TensorSpec, parse_example

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])


@given(SHAPES, DTYPES, st.integers(1, 7))
def test_an_example_is_of_its_kind_and_always_the_same(shape, dtype, batch_size):
    spec = TensorSpec(shape, dtype)
    example = spec.example(batch_size)
    assert TensorSpec.of(example) == TensorSpec((batch_size, *shape[1:]), dtype)
    assert torch.equal(example, spec.example(batch_size))
    assert spec.bytes == math.prod(shape) * torch.empty(0, dtype=dtype).element_size()


@given(st.integers(1, 40))
def test_integer_examples_stay_below_their_bound(high):
    example = TensorSpec((500,), torch.int64).example(high=high)
    assert example.min() >= 0
    assert example.max() <= high - 1


@given(SHAPES, DTYPES)
def test_a_command_line_names_shape_and_type(shape, dtype):
    text = f"{'x'.join(map(str, shape))}:{str(dtype).removeprefix('torch.')}"
    assert TensorSpec.of(parse_example(text)) == TensorSpec(shape, dtype)


def test_an_example_is_float32_unless_said_otherwise():
    assert TensorSpec.of(parse_example("32x3x32x32")) == TensorSpec((32, 3, 32, 32), torch.float32)


@given(st.integers(1, 1000))
def test_a_command_line_bounds_integers(high):
    example = parse_example(f"20x20:int64<{high}")
    assert example.max() < high
    assert parse_example("20x20:int64").max() == 1


def test_a_bound_may_be_as_large_as_the_type_holds():
    assert parse_example("2000:uint8<256").max() == 255
    with pytest.raises(ModelError, match="uint8 holds at most 255"):
        parse_example("2000:uint8<257")


@pytest.mark.parametrize(
    "text", ["", "x", "0x3", "3x", "3x0", "-1x2", "3x2:", "3x2<5", "3x2:int64<0", "3 x 2", "3x2\n", "٣x2"]
)
def test_an_invalid_example_is_refused(text):
    with pytest.raises(ModelError, match="write its shape with the batch"):
        parse_example(text)


def test_an_unknown_type_is_refused_with_those_that_are_known():
    with pytest.raises(ModelError, match=r"'int63' is not one of the types float32, .*uint8"):
        parse_example("3x2:int63")


def test_a_bound_on_floats_is_refused():
    with pytest.raises(ModelError, match="leave out <5"):
        parse_example("3x2:float32<5")


def test_an_example_beyond_all_memory_is_refused():
    with pytest.raises(ModelError, match="do not fit into memory"):
        parse_example("9999999999x9999999999")
