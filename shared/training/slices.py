"""Slices of a block: the parts in which a group takes its gradient, updates it, and hands out its weights, each by itself.

A slice has ranges of parameters. An elementwise optimizer updates a range as it updates the whole, bit for bit: ranges begin at
multiples of 64 elements, so that no vector instruction takes elements of two. Where an update needs the whole gradient of a
block, as for its norm, the block is one slice.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from shared.model.chain import Block
from shared.registry.optimizers import spec_of
from shared.slicing import slice_count
from shared.training.recipe import Recipe

UNIT = 64
"""Elements of which every range begins at a multiple."""


class ParameterRange(NamedTuple):
    """Elements [begin, stop) of a parameter, in the order of its indices."""

    name: str
    """Its name in the whole module."""
    begin: int
    stop: int
    is_whole: bool
    """True if it has all of the parameter, and so its shape; any other is a row of elements."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return the elements of a tensor of the parameter's shape: in its memory, where that is in one piece."""
        return tensor if self.is_whole else tensor.reshape(-1)[self.begin : self.stop]

    def put(self, tensor: Tensor, elements: Tensor) -> None:
        """Write these elements of a tensor of the parameter's shape."""
        if self.is_whole or tensor.is_contiguous():
            if (there := self.of(tensor)).data_ptr() != elements.data_ptr():
                there.copy_(elements)
        else:
            flat = tensor.reshape(-1)
            flat[self.begin : self.stop].copy_(elements)
            tensor.copy_(flat.view(tensor.shape))


class Slice(NamedTuple):
    """One slice of a block."""

    ranges: tuple[ParameterRange, ...]
    """Ranges of the parameters that learn, by their names."""
    has_buffers: bool
    """True for the first slice, with which all goes that is no parameter."""


def may_be_cut(recipe: Recipe) -> bool:
    """Tell whether a range is updated as a part of the whole, by its own gradient alone."""
    return (
        spec_of(recipe.optimizer).is_elementwise
        and recipe.optimizer.clip_norm is None
        and recipe.accumulate_batches == 1
    )


def whole(block: Block) -> Slice:
    """Return all of a block as one slice."""
    return Slice(
        tuple(ParameterRange(name, 0, value.numel(), is_whole=True) for name, value in _learning(block).items()),
        has_buffers=True,
    )


def learning_bytes(block: Block) -> int:
    """Count the bytes of the parameters that learn."""
    return sum(value.nbytes for value in _learning(block).values())


def cut(block: Block, all_bytes: int) -> tuple[Slice, ...]:
    """Cut a block into slices of about as many bytes as each other. all_bytes: `learning_bytes` of all blocks."""
    parameters, total = _learning(block), learning_bytes(block)
    slices: list[list[ParameterRange]] = [[]]
    slice_total, filled = slice_count(total, all_bytes), 0
    for name, value in parameters.items():
        begin, count = 0, value.numel()
        if not count:
            slices[-1].append(ParameterRange(name, 0, 0, is_whole=True))
        while begin < count:
            room = total * len(slices) // slice_total - filled
            stop = min(count, begin + UNIT * max(0, math.ceil(room / value.element_size() / UNIT)))
            if stop == begin:
                slices.append([])
                continue
            slices[-1].append(ParameterRange(name, begin, stop, is_whole=stop - begin == count))
            filled += (stop - begin) * value.element_size()
            begin = stop
    return tuple(Slice(tuple(ranges), has_buffers=number == 0) for number, ranges in enumerate(slices))


def _learning(block: Block) -> Mapping[str, Tensor]:
    return {name: value for name, value in sorted(block.named_parameters().items()) if value.requires_grad}
