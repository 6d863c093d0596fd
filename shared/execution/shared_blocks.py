"""Messages between the owner of a shared block and the other workers that hold parts of it.

A part is the gradient of the part's samples and the buffers that they have left; the answer is the block after the update. In
a group both may be of one slice of the block.
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
from shared.training.slices import Slice, whole

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
    label_count: float = 0.0
    rate_drops: int = 0
    """See `StepInFlight`, as for `label_count`."""


def part_of(block: Block, gradient: BlockGradients, one: Slice | None = None) -> BlockPart:
    """A worker's own part, of a slice or all of a block; buffers are copied, because the next forward writes to them."""
    one = one or whole(block)
    there = [each for each in one.ranges if each.name in gradient]
    part = {f"gradient/{each.name}": each.of(gradient[each.name].detach()) for each in there}
    return part | {name: value.clone() for name, value in _buffers(block, one).items()}


def part_layout(block: Block, one: Slice | None = None) -> block_state.BlockTensors:
    """Tensors of the names, shapes and types that a part can have; not copied."""
    one, parameters = one or whole(block), block.named_parameters()
    learning = {f"gradient/{each.name}": each.of(parameters[each.name].detach()) for each in one.ranges}
    return learning | _buffers(block, one)


def summed(block: Block, parts: Sequence[WeightedPart]) -> BlockGradients:
    """Add the parts, left to right, and put the buffers that follow from all of them into the block.

    The loss has scaled each part already, so their sum is the gradient of the whole batch. A buffer of floats becomes the mean
    of the parts by samples, in float64; one of integers, as a counter of batches, that of the first part.
    """
    _take_buffers(block, parts, whole(block))
    return _added(block, [(one.part, None) for one in parts])


def averaged(block: Block, parts: Sequence[WeightedPart], one: Slice, *, by_labels: bool = False) -> BlockGradients:
    """Average gradients of a slice by their samples, left to right, and put the buffers that follow into the block.

    g0 * w0, then + g_r * w_r with w_r = n_r / N, multiplied and added apart, so that the result depends on no order of arrival
    and on no fused operation. by_labels: n_r is how much the labels of a part count; where none does, nothing is changed by
    what is 0 anyway. Buffers are as in `summed`.
    """
    _take_buffers(block, parts, one)
    weights = [each.label_count if by_labels else each.samples for each in parts]
    whole = sum(weights) or 1.0
    return _added(block, [(each.part, weight / whole) for each, weight in zip(parts, weights, strict=True)])


def _take_buffers(block: Block, parts: Sequence[WeightedPart], one: Slice) -> None:
    for name, buffer in _buffers(block, one).items():
        buffer.copy_(_mean([(each.part[name], each.samples) for each in parts]))


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


def weights_layout(block: Block, one: Slice | None = None) -> block_state.BlockTensors:
    """The parameters and buffers of a slice, or of all of a block; not copied."""
    one, parameters = one or whole(block), block.named_parameters()
    weights = {f"parameter/{each.name}": each.of(parameters[each.name].detach()) for each in one.ranges}
    return weights | _buffers(block, one)


def weights_of(block: Block, one: Slice | None = None) -> block_state.BlockTensors:
    """A copy of the parameters and buffers, as holders take them over (`HeldBlocks.take_weights`)."""
    return {name: tensor.clone() for name, tensor in weights_layout(block, one).items()}


def joined(block: Block, parts: Sequence[BlockPart]) -> block_state.BlockTensors:
    """Return the weights of a block by those of all of its slices, in their order."""
    whole_of, found = weights_layout(block), dict[str, list[Tensor]]()
    for part in parts:
        for name, tensor in part.items():
            found.setdefault(name, []).append(tensor)
    return {
        name: pieces[0] if len(pieces) == 1 else torch.cat(pieces).view(whole_of[name].shape)
        for name, pieces in found.items()
    }


def parted(weights: Mapping[str, Tensor], one: Slice) -> BlockPart:
    """Return the weights of a slice, by those of its block; not copied."""
    ranges = {f"parameter/{each.name}": each for each in one.ranges}
    mine = {name: each.of(weights[name]) for name, each in ranges.items()}
    buffers = {name: tensor for name, tensor in weights.items() if not name.startswith("parameter/")}
    return mine | (buffers if one.has_buffers else {})


def added(block: Block, received: BlockPart, one: Slice) -> block_state.BlockTensors:
    """Return the weights that a slice has once what was received is in it: differences are added to what is there."""
    found = {name: tensor for name, tensor in received.items() if not name.startswith("difference/")}
    for name, tensor in weights_layout(block, one).items():
        if (difference := received.get(difference_name(name))) is not None:
            found[name] = moved_by(tensor, difference)
    return found


def moved_by(weights: Tensor, difference: Tensor) -> Tensor:
    """Add a difference, as all that have these weights do, so that they go on having the same."""
    return weights + difference.to(weights.device)


def _buffers(block: Block, one: Slice) -> block_state.BlockTensors:
    """Collect the values of a block besides its weights that training changes, named as in its state, if a slice has them."""
    if not one.has_buffers:
        return {}
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
