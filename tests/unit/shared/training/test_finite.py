"""Numbers that are not finite are found wherever they are, and large finite ones are not taken for such."""

import math

import pytest
import torch

from shared.training.finite import are_finite


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("found", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_number_among_many_is_found(dtype, found, place):
    numbers = torch.zeros(1000, dtype=dtype)
    numbers[place] = found
    assert are_finite([torch.ones(3, dtype=dtype), numbers, torch.ones(3, dtype=dtype)]) == [True, False, True]


def test_infinities_that_cancel_are_found():
    assert are_finite([torch.tensor([math.inf, -math.inf])]) == [False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_large_numbers_whose_sum_overflows_are_finite(dtype):
    assert are_finite([torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)]) == [True]


def test_kinds_without_such_numbers_are_finite():
    kinds = torch.int64, torch.bool, torch.uint8
    assert are_finite([torch.ones(4, dtype=each) for each in kinds] + [torch.empty(0)]) == [True] * 4
    assert are_finite([]) == []


def test_a_parameter_that_learns_keeps_no_history_of_it():
    parameter = torch.nn.Parameter(torch.ones(4))
    assert are_finite([parameter]) == [True]
    assert parameter.grad is None
