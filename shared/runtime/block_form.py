"""The load of a shared block, or of a slice of it, on the wire: a tensor for each entry, each as it lies in memory.

A tensor of a type that the contract has not, or of more dimensions, goes as a row of its bytes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.codec import codec_by_name
from shared.execution.residuals import Residuals
from shared.execution.shared_blocks import (
    BlockPart,
    CodedWeights,
    difference_name,
    may_be_coded,
    part_layout,
    weights_layout,
)
from shared.execution.step_in_flight import EncodedSlots, Load
from shared.model.chain import Block
from shared.model.spec import TensorSpec
from shared.placement import Cargo, Crossing, Placement
from shared.registry import codec_spec
from shared.runtime.announcements import ExpectedTensor
from shared.runtime.form import Form, decoded_slots
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


class BlockForm(Form):
    """Weights of a slice of a shared block, or their gradients: a tensor for each entry."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        entries: Mapping[int, BlockEntry],
        codec: str,
        residuals: Residuals,
    ) -> None:
        """entries: by slot. codec: of the entries that may be coded."""
        super().__init__(
            crossing, placement, {slot: codec if one.may_be_coded else "raw" for slot, one in entries.items()}
        )
        self.entries = entries
        self._are_weights = crossing.cargo is Cargo.WEIGHTS
        self._keeps_losses = codec_spec(codec).lossy and not self._are_weights
        self._residuals = residuals

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """See `Form.expected`."""
        entry = self.entries[slot]
        return ExpectedTensor(
            self.key(step, slot),
            self.version,
            self.codecs[slot],
            entry.sent,
            # A part without samples has nothing at all.
            may_be_absent=not self._are_weights and (entry.is_gradient or not self._rows(samples)),
            may_be_whole=self._are_weights,
        )

    def encode(self, load: Load, numbers: Tensor | None = None) -> EncodedSlots:  # noqa: ARG002 - a block has no samples
        """See `Form.encode`."""
        if isinstance(load, CodedWeights):
            whole = self._whole_entries(load.weights, load.differences.keys())
            differ = {slot: one.name for slot, one in self.entries.items() if one.name in load.differences}
            return whole | {slot: load.differences[name] for slot, name in differ.items()}
        assert isinstance(load, dict), "the load of a shared block is by name"
        if self._are_weights:
            return self._whole_entries(load)
        if not self._keeps_losses:
            return self._encoded_entries(load)
        of_block = self.crossing.of_block
        wanted = self._residuals.added(of_block, load)
        encoded = self._encoded_entries(wanted)
        received = self.decode(encoded)
        assert isinstance(received, dict), "a part of a block is by name"
        self._residuals.note(of_block, wanted, received)
        return encoded

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        found: BlockPart = {}
        for slot, value in sorted(decoded_slots(encoded).items()):
            entry, each = self.entries[slot], encoded[slot]
            differs = self._are_weights and each is not None and each.codec != "raw"
            found[difference_name(entry.name) if differs else entry.name] = entry.from_wire(value)
        return found

    def worst_bytes(self, *, kept: bool) -> int:
        """See `Form.worst_bytes`. Its tensors lie in one place, but may be there for two steps, because the next step begins
        while the last weights come."""
        return (2 + (kept and self._are_weights)) * sum(entry.spec.bytes for entry in self.entries.values())

    def _whole_entries(self, load: BlockPart, but: Collection[str] = ()) -> EncodedSlots:
        """Return weights as they are, but for some by their names, which are left to the caller."""
        codec = codec_by_name("raw")
        return {
            slot: None if entry.name in but else codec.encode(entry.to_wire(load[entry.name]).cpu())
            for slot, entry in self.entries.items()
        }

    def _encoded_entries(self, load: BlockPart) -> EncodedSlots:
        return {
            slot: self._codec_of[slot].encode(entry.to_wire(load[entry.name]).cpu()) if entry.name in load else None
            for slot, entry in self.entries.items()
        }
