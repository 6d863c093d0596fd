"""Slices of a block have each element once, and an optimizer that updates them in any order ends with the bits of the whole."""

import copy
import math
import random

import pytest
import torch
from torch import nn

from shared import slicing
from shared.errors import ProtocolError
from shared.model.chain import build_chain
from shared.registry import OPTIMIZERS
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.slices import UNIT, cut, learning_bytes, may_be_cut, whole
from tests.support.placed import CPU, recipe

SIZES = (70, 700)


def wide():
    """A block of a matrix that torch updates in several threads, a vector, and statistics, and another one."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Sequential(nn.Linear(*SIZES), nn.BatchNorm1d(SIZES[1])), nn.Linear(SIZES[1], 2))


def all_of(block):
    """Cut a block that is all there is."""
    return cut(block, learning_bytes(block))


def block_of(module):
    return build_chain(module, torch.zeros(8, SIZES[0])).blocks[0]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("slice_bytes", [256, 1000, 20_000, 10**9])
def test_each_element_is_in_one_slice_and_ranges_begin_at_multiples(monkeypatch, slice_bytes, times):
    """times: bytes of all blocks over those of this one."""
    monkeypatch.setattr(slicing, "SLICE_BYTES", slice_bytes)
    block = block_of(wide())
    parameters, total = block.named_parameters(), learning_bytes(block)
    slices = cut(block, all_bytes := times * total)
    assert len(slices) == slicing.slice_count(total, all_bytes) <= math.ceil(slicing.SLICES_OF_ALL / times)
    assert [one.has_buffers for one in slices] == [True, *[False] * (len(slices) - 1)]
    for name, value in parameters.items():
        ranges = [each for one in slices for each in one.ranges if each.name == name]
        assert [each.begin for each in ranges] == [0, *(each.stop for each in ranges)][:-1]
        assert ranges[-1].stop == value.numel()
        assert all(each.begin % UNIT == 0 for each in ranges)
        assert [each.is_whole for each in ranges] == ([True] if len(ranges) == 1 else [False] * len(ranges))
    sizes = [sum(each.stop - each.begin for each in one.ranges) for one in slices]
    assert max(sizes) - min(sizes) <= 2 * UNIT, "slices are alike"
    if len(slices) == 1:
        assert slices == (whole(block),)


@pytest.mark.parametrize(
    "told",
    [recipe("adafactor"), recipe("sgd", 1.0), recipe("adam", 1.0, clip="model"), recipe("sgd", accumulate_batches=2)],
)
def test_a_block_is_whole_where_an_update_needs_all_of_its_gradient(told):
    assert not may_be_cut(told)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("optimizer", [name for name, spec in OPTIMIZERS.items() if spec.is_elementwise])
def test_slices_in_any_order_end_with_the_bits_of_the_whole(monkeypatch, optimizer, layout):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 9000)
    told, dice = recipe(optimizer), random.Random(optimizer)
    assert may_be_cut(told)
    module = wide()
    if layout == "transposed":
        module[0][0].weight.data = module[0][0].weight.data.t().contiguous().t()
    held = [HeldBlocks(build_chain(copy.deepcopy(module), torch.zeros(8, SIZES[0])), told, CPU, [0]) for _ in range(2)]
    slices = all_of(held[0].chain.blocks[0])
    assert len(slices) > 10
    for step in range(4):
        gradients = {
            name: torch.randn_like(value) for name, value in held[0].chain.blocks[0].named_parameters().items()
        }
        held[0].put_back({0: {name: value.clone() for name, value in gradients.items()}})
        held[0].update([0], step)
        for one in dice.sample(slices, len(slices)):
            held[1].update_slice(0, one, {each.name: each.of(gradients[each.name]) for each in one.ranges}, step)
        expected, found = (each.block_tensors(0) for each in held)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (step, name)


def test_a_parameter_without_a_gradient_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 9000)
    held = HeldBlocks(build_chain(wide(), torch.zeros(8, SIZES[0])), recipe("adam"), CPU, [0])
    before = {name: value.clone() for name, value in held.block_tensors(0).items()}
    for one in all_of(held.chain.blocks[0]):
        held.update_slice(0, one, {}, 0)
    assert all(torch.equal(value, before[name]) for name, value in held.block_tensors(0).items())


def test_weights_that_are_not_those_of_a_slice_are_refused_and_change_nothing(monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 9000)
    block = block_of(wide())
    before = {name: value.clone() for name, value in block_state.collect(block, None).items()}
    one = all_of(block)[3]
    (each,) = one.ranges
    name = f"parameter/{each.name}"
    for wrong in ({}, {name: torch.ones(7)}, {name: torch.ones(each.stop - each.begin), "buffer/x": torch.ones(1)}):
        with pytest.raises(ProtocolError, match="state of block"):
            block_state.put_weights(block, one, wrong)
    assert all(torch.equal(value, before[name]) for name, value in block_state.collect(block, None).items())
