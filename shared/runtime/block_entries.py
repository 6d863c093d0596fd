"""The tensors of a shared block in the form of the wire: one a slot, each as it lies in memory.

A tensor of a type that the contract has not, or of more dimensions, goes as a row of its bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.execution.shared_blocks import may_be_coded, part_layout, weights_layout
from shared.model.chain import Block
from shared.model.spec import TensorSpec
from shared.placement import Cargo
from shared.tensor_wire import can_be_sent
from shared.training.slices import Slice

SHARED = (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS)
"""The cargoes that concern a shared block."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One tensor of a load."""

    name: str
    spec: TensorSpec
    is_gradient: bool
    """True for a gradient, of which there may be none in a step."""

    @property
    def may_be_coded(self) -> bool:
        """Tell whether the codec of its route carries it, or its difference: buffers are few numbers that all count."""
        return not self.name.startswith(("buffer/", "transient/")) and may_be_coded(self.spec)

    @property
    def sent(self) -> TensorSpec:
        """Its shape and type on the wire."""
        return self.spec if can_be_sent(self.spec) else TensorSpec((self.spec.bytes,), torch.uint8)

    def to_wire(self, tensor: Tensor) -> Tensor:
        """The tensor as it is sent."""
        return tensor if can_be_sent(self.spec) else tensor.contiguous().reshape(-1).view(torch.uint8)

    def from_wire(self, tensor: Tensor) -> Tensor:
        """The tensor that was sent."""
        return tensor if can_be_sent(self.spec) else tensor.view(self.spec.dtype).reshape(self.spec.shape)


def entries_of(block: Block, cargo: Cargo, one: Slice | None = None) -> tuple[BlockEntry, ...]:
    """The tensors of a load of a shared block, or of a slice of it, by name, so that all workers have one order."""
    layout = part_layout(block, one) if cargo is Cargo.WEIGHT_GRADIENT else weights_layout(block, one)
    return tuple(
        BlockEntry(name, TensorSpec.of(tensor), name.startswith("gradient/")) for name, tensor in sorted(layout.items())
    )
