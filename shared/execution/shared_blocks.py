"""Messages between the owner of a shared block and the other workers that hold parts of it.

A part is the gradient of the part's samples and the buffers that they have left; the answer is the block after the update.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shared.bounds import MAX_DIMENSIONS
from shared.codec import Encoded, codec_by_name
from shared.model.chain import Block
from shared.model.spec import TensorSpec
from shared.training import block_state
from shared.training.held_blocks import BlockGradients

BlockPart = dict[str, Tensor]
"""`gradient/NAME` of each parameter that a gradient has reached, and `buffer/NAME` and `transient/NAME`.

Of weights, `parameter/NAME` or `difference/NAME`, by which a parameter differs from that of the step before, and buffers.
"""
_CODED_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def may_be_coded(tensor: TensorSpec) -> bool:
    """Tell whether a codec can carry a gradient, or a difference, of this kind."""
    return tensor.dtype in _CODED_TYPES and len(tensor.shape) <= MAX_DIMENSIONS


@dataclass(frozen=True, slots=True)
class CodedWeights:
    """The weights of a block after an update, for those who have the ones before it."""

    weights: BlockPart
    """The parameters and buffers after it."""
    differences: Mapping[str, Encoded]
    """Change of each parameter, encoded once for all who get it, by `parameter/NAME`."""

    @property
    def received(self) -> BlockPart:
        """Return them as a receiver in the same process has them."""
        return {
            difference_name(name): codec_by_name(encoded.codec).decode(encoded)
            for name, encoded in self.differences.items()
        } | {name: tensor for name, tensor in self.weights.items() if name not in self.differences}


def difference_name(name: str) -> str:
    """Return the name of a difference, by that of its parameter in the weights."""
    return f"difference/{name.partition('/')[2]}"


class WeightedPart(NamedTuple):
    """One part, and how many samples of the batch it has seen."""

    part: BlockPart
    samples: int


def part_of(block: Block, gradient: BlockGradients) -> BlockPart:
    """A worker's own part; buffers are copied, because the next forward writes to them."""
    part = {f"gradient/{name}": tensor.detach() for name, tensor in gradient.items()}
    return part | {name: value.clone() for name, value in _buffers(block).items()}


def part_layout(block: Block) -> block_state.BlockTensors:
    """Tensors of the names, shapes and types that a part can have; not copied."""
    learning = {name: value.detach() for name, value in block.named_parameters().items() if value.requires_grad}
    return {f"gradient/{name}": value for name, value in learning.items()} | _buffers(block)


def summed(block: Block, parts: Sequence[WeightedPart]) -> BlockGradients:
    """Add the parts, left to right, and put the buffers that follow from all of them into the block.

    The loss has scaled each part already, so their sum is the gradient of the whole batch. A buffer of floats becomes the mean
    of the parts by samples, in float64; one of integers, as a counter of batches, that of the first part.
    """
    _take_buffers(block, parts)
    return _added(block, [(one.part, None) for one in parts])


def averaged(block: Block, parts: Sequence[WeightedPart]) -> BlockGradients:
    """Average gradients of batches by their samples, left to right, and put the buffers that follow into the block.

    g0 * w0, then + g_r * w_r with w_r = n_r / N, multiplied and added apart, so that the result depends on no order of arrival
    and on no fused operation. Buffers are as in `summed`.
    """
    _take_buffers(block, parts)
    samples = sum(one.samples for one in parts)
    return _added(block, [(one.part, one.samples / samples) for one in parts])


def _take_buffers(block: Block, parts: Sequence[WeightedPart]) -> None:
    for name, buffer in _buffers(block).items():
        buffer.copy_(_mean([(one.part[name], one.samples) for one in parts]))


def _added(block: Block, parts: Sequence[tuple[BlockPart, float | None]]) -> BlockGradients:
    """Add gradients, each of which may be multiplied by a number first."""
    gradient: BlockGradients = {}
    for name, parameter in block.named_parameters().items():
        for part, factor in parts:
            if (found := part.get(f"gradient/{name}")) is None:
                continue
            own = found.to(parameter.device)
            scaled = own if factor is None else own * factor
            if name in gradient:
                gradient[name] += scaled
            else:
                gradient[name] = scaled.clone() if scaled is found else scaled
    return gradient


def weights_layout(block: Block) -> block_state.BlockTensors:
    """The parameters and buffers of a block; not copied."""
    return block_state.collect(block, None)


def weights_of(block: Block) -> block_state.BlockTensors:
    """A copy of the parameters and buffers of a block, as holders take them over (`HeldBlocks.take_weights`)."""
    return {name: tensor.clone() for name, tensor in weights_layout(block).items()}


def added(block: Block, received: BlockPart) -> block_state.BlockTensors:
    """Return the weights that a block has once what was received is in it: differences are added to what is there."""
    found = {name: tensor for name, tensor in received.items() if not name.startswith("difference/")}
    for name, tensor in weights_layout(block).items():
        if (difference := received.get(difference_name(name))) is not None:
            found[name] = moved_by(tensor, difference)
    return found


def moved_by(weights: Tensor, difference: Tensor) -> Tensor:
    """Add a difference, as all that have these weights do, so that they go on having the same."""
    return weights + difference.to(weights.device)


def _buffers(block: Block) -> block_state.BlockTensors:
    """Collect the values of a block besides its weights that training changes, named as in its state."""
    return {
        name: value for name, value in block_state.collect(block, None).items() if not name.startswith("parameter/")
    }


def _mean(values: Sequence[tuple[Tensor, int]]) -> Tensor:
    first, _ = values[0]
    if not first.is_floating_point() or len(values) == 1:
        return first
    total = torch.zeros(first.shape, dtype=torch.float64)
    for value, samples in values:
        total += value.to("cpu", torch.float64) * samples
    return (total / sum(samples for _, samples in values)).to(first.dtype)
