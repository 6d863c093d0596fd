"""Crossings between two workers in the form of the wire: the key of each tensor in a stream, its allowed form, and its load.

A feature, an error gradient and labels are a tensor for each slot that crosses; norms, a coefficient and a scale are one; the
load of a shared block is a tensor for each of its entries (`block_entries`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from shared.codec import Encoded, codec_by_name
from shared.errors import ProtocolError
from shared.execution.block_slices import Slices
from shared.execution.crossing_types import CrossingTypes
from shared.execution.residuals import Residuals
from shared.execution.shared_blocks import BlockPart, CodedWeights, difference_name
from shared.execution.step_in_flight import Load
from shared.model.chain import Chain
from shared.model.features import Gradients
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice, Cargo, Crossing, Placement, Route
from shared.registry import codec_spec
from shared.runtime.announcements import ExpectedTensor
from shared.runtime.block_entries import SHARED, BlockEntry, entries_of
from shared.training.clipping import check_coefficient, check_norms, count_of
from shared.training.loss_scale import check_scale
from shared.training.recipe import Recipe
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Role

ROLES = {
    Cargo.FEATURE: Role.ROLE_FEATURE,
    Cargo.ERROR_GRADIENT: Role.ROLE_ERROR_GRADIENT,
    Cargo.LABEL: Role.ROLE_LABEL,
    Cargo.WEIGHT_GRADIENT: Role.ROLE_WEIGHT_GRADIENT,
    Cargo.WEIGHTS: Role.ROLE_WEIGHTS,
    Cargo.NORMS: Role.ROLE_NORMS,
    Cargo.COEFFICIENT: Role.ROLE_COEFFICIENT,
    Cargo.SCALE: Role.ROLE_SCALE,
}
NUMBERS = frozenset((Cargo.NORMS, Cargo.COEFFICIENT, Cargo.SCALE))
"""The cargoes of a few numbers, by which all blocks are updated together."""


def numbers_spec(chain: Chain, crossing: Crossing) -> TensorSpec:
    """The form of a load of numbers by which blocks are updated together."""
    of_blocks = crossing.cargo is Cargo.NORMS
    return TensorSpec(
        (sum(count_of(chain.blocks[block]) for block in crossing.slots) if of_blocks else 1,), torch.float64
    )


EncodedSlots = dict[int, Encoded | None]
"""The tensors of a crossing by slot, None where there is no gradient."""


@dataclass(frozen=True)
class CrossingWire:
    """The form in which the crossings of one placement of a chain travel."""

    placement: Placement
    chain: Chain
    check_labels: Callable[[TensorSpec], None]
    """Refuses labels that the loss cannot take; raises an IsthmusError."""
    recipe: Recipe
    """The recipe: in some precisions the loss is scaled, so that gradients may overflow."""
    residuals: Residuals = field(default_factory=Residuals, repr=False)
    """The losses of codecs on the gradients of weights that this worker has sent."""
    merged: bool = False
    """True where a group updates, so that slices of blocks cross."""
    _entries: dict[tuple[Cargo, BlockSlice], tuple[BlockEntry, ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    _first_slots: dict[tuple[Cargo, BlockSlice], int] = field(default_factory=dict, init=False, repr=False)
    """The slot of the first entry of a slice: those of a block are numbered through."""
    _coded: dict[int, tuple[bool, ...]] = field(default_factory=dict, init=False, repr=False)

    def entries(self, crossing: Crossing) -> tuple[BlockEntry, ...]:
        """The tensors of a load of a shared block, in the order of their slots."""
        key = crossing.cargo, crossing.of_block
        if key not in self._entries:
            cargo, block = crossing.cargo, crossing.index
            first = 0
            for one in self._slices.numbered(block):
                found = entries_of(self.chain.blocks[block], cargo, self._slices[one])
                self._entries[cargo, one], self._first_slots[cargo, one] = found, first
                first += len(found)
        return self._entries[key]

    @cached_property
    def _slices(self) -> Slices:
        return Slices(self.chain, self.recipe, merged=self.merged)

    def _by_slot(self, crossing: Crossing) -> dict[int, BlockEntry]:
        return dict(zip(self.slots(crossing), self.entries(crossing), strict=True))

    def _entry(self, crossing: Crossing, slot: int) -> BlockEntry:
        entries = self.entries(crossing)
        return entries[slot - self._first_slots[crossing.cargo, crossing.of_block]]

    def slots(self, crossing: Crossing) -> tuple[int, ...]:
        """The slots that cross, in their order."""
        match crossing.cargo:
            case Cargo.FEATURE | Cargo.ERROR_GRADIENT | Cargo.LABEL:
                return crossing.slots
            case Cargo.WEIGHT_GRADIENT | Cargo.WEIGHTS:
                count = len(self.entries(crossing))
                first = self._first_slots[crossing.cargo, crossing.of_block]
                return tuple(range(first, first + count))
        return (0,)

    def key(self, crossing: Crossing, step: int, slot: int) -> TensorKey:
        """Return the key of a tensor in the stream. Weights bear the step that they are for: there is none before the first."""
        return TensorKey(step + (crossing.cargo is Cargo.WEIGHTS), ROLES[crossing.cargo], crossing.index, slot)

    def step(self, crossing: Crossing, step: int) -> int:
        """Return the step of a crossing, from that of its key or of a position."""
        return step - (crossing.cargo is Cargo.WEIGHTS)

    def codec(self, crossing: Crossing, slot: int) -> str:
        """The codec of one tensor: some go raw, see `Chain.coded_slots` and `BlockEntry.may_be_coded`."""
        if crossing.cargo in SHARED:
            return self._of_route(crossing) if self._entry(crossing, slot).may_be_coded else "raw"
        if crossing.cargo not in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            return "raw"
        if crossing.index not in self._coded:
            self._coded[crossing.index] = self.chain.coded_slots(crossing.index)
        return self._of_route(crossing) if self._coded[crossing.index][slot] else "raw"

    def _of_route(self, crossing: Crossing) -> str:
        return self.placement.codecs.get(Route(crossing.sender, crossing.receiver, crossing.cargo), "raw")

    def expected(self, crossing: Crossing, step: int, slot: int, samples: int) -> ExpectedTensor:
        """Describe the tensor that must come for one slot of a crossing. samples: of the whole batch."""
        rows = crossing.rows.scaled(samples, self.placement.batch_size).count
        key, version = self.key(crossing, step, slot), self.placement.version
        if crossing.cargo is Cargo.LABEL:
            return ExpectedTensor(key, version, "raw", lambda labels: self._check_labels(labels, rows))
        if crossing.cargo in NUMBERS:
            return ExpectedTensor(key, version, "raw", numbers_spec(self.chain, crossing))
        if crossing.cargo in SHARED:
            entry = self._entry(crossing, slot)
            # A part without samples has nothing at all.
            are_weights = crossing.cargo is Cargo.WEIGHTS
            return ExpectedTensor(
                key,
                version,
                self.codec(crossing, slot),
                entry.sent,
                may_be_absent=not are_weights and (entry.is_gradient or not rows),
                may_be_whole=are_weights,
            )
        spec = self.spec(crossing, slot)
        whole = TensorSpec((rows, *spec.shape[1:]), spec.dtype)
        tensor: TensorSpec | Callable[[TensorSpec], None] = whole
        if rows and (lengths := self.chain.lengths) is not None and lengths.varies(crossing.index, slot):
            tensor = partial(self._check_length, crossing, slot, whole)
        is_gradient = crossing.cargo is Cargo.ERROR_GRADIENT
        return ExpectedTensor(key, version, self.codec(crossing, slot), tensor, may_be_absent=is_gradient)

    def spec(self, crossing: Crossing, slot: int) -> TensorSpec:
        """The kind of a tensor of a feature, or of its error gradient, for a whole batch."""
        return self._types.specs(crossing.index)[slot]

    @cached_property
    def _types(self) -> CrossingTypes:
        return CrossingTypes(self.chain, self.recipe, self.placement)

    def length(self, crossing: Crossing, slot: int, shape: Sequence[int]) -> int | None:
        """Return the length of a batch, by the shape of one of its tensors; None where that does not tell it."""
        if self.chain.lengths is None or crossing.cargo not in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            return None
        if not shape or not shape[0]:
            return None  # of a part without samples nothing has a length
        return self.chain.lengths.of(crossing.index, slot, shape)

    def is_lossless(self, crossing: Crossing) -> bool:
        """Tell whether no codec takes anything from the tensors, so that to encode and to decode them takes no time."""
        if crossing.cargo is Cargo.LABEL:
            return True
        return not any(codec_spec(self.codec(crossing, slot)).lossy for slot in self.slots(crossing))

    def quick_bytes(self, crossing: Crossing) -> int:
        """Return the largest size of a load that is coded or copied quicker than it is handed to another thread."""
        raw = codec_by_name("raw")
        if crossing.cargo is Cargo.LABEL:
            return raw.QUICK_BYTES
        codecs = (codec_by_name(self.codec(crossing, slot)) for slot in self.slots(crossing))
        return min((codec.QUICK_BYTES for codec in codecs), default=raw.QUICK_BYTES)

    def encode(self, crossing: Crossing, load: Load) -> EncodedSlots:
        """The tensors of a load by slot. Computes.

        To be called once for a gradient of weights: what its codec takes from it goes with the next one.
        """
        if isinstance(load, CodedWeights):
            names = {slot: entry.name for slot, entry in self._by_slot(crossing).items()}
            return self._whole_entries(crossing, load.weights, load.differences.keys()) | {
                slot: load.differences[name] for slot, name in names.items() if name in load.differences
            }
        if not isinstance(load, dict):
            return {slot: self._encoded(crossing, slot, load[slot]) for slot in self.slots(crossing)}
        if crossing.cargo is Cargo.WEIGHTS:
            return self._whole_entries(crossing, load)
        if not codec_spec(self._of_route(crossing)).lossy:
            return self._encoded_entries(crossing, load)
        wanted = self.residuals.added(crossing.of_block, load)
        encoded = self._encoded_entries(crossing, wanted)
        received = self.decode(crossing, encoded)
        assert isinstance(received, dict), "a part of a block is by name"
        self.residuals.note(crossing.of_block, wanted, received)
        return encoded

    def _whole_entries(self, crossing: Crossing, load: BlockPart, but: Collection[str] = ()) -> EncodedSlots:
        """Return weights as they are, but for some by their names, which are left to the caller."""
        codec = codec_by_name("raw")
        return {
            slot: None if entry.name in but else codec.encode(entry.to_wire(load[entry.name]).cpu())
            for slot, entry in self._by_slot(crossing).items()
        }

    def _encoded_entries(self, crossing: Crossing, load: BlockPart) -> EncodedSlots:
        return {
            slot: self._encoded(crossing, slot, entry.to_wire(load[entry.name])) if entry.name in load else None
            for slot, entry in self._by_slot(crossing).items()
        }

    def _encoded(self, crossing: Crossing, slot: int, tensor: Tensor | None) -> Encoded | None:
        return None if tensor is None else codec_by_name(self.codec(crossing, slot)).encode(tensor.cpu())

    def decode(self, crossing: Crossing, encoded: EncodedSlots) -> Load:
        """Return the load of these slots. Computes. Raises ProtocolError for bytes that no peer could have encoded."""
        values = {slot: codec_by_name(each.codec).decode(each) for slot, each in encoded.items() if each is not None}
        if crossing.cargo in SHARED:
            entries = self._by_slot(crossing)
            differ = {slot for slot, each in encoded.items() if each is not None and each.codec != "raw"}
            differ = differ if crossing.cargo is Cargo.WEIGHTS else set()
            return {
                difference_name(entries[slot].name) if slot in differ else entries[slot].name: (
                    entries[slot].from_wire(value)
                )
                for slot, value in sorted(values.items())
            }
        if crossing.cargo is Cargo.LABEL:
            return tuple(values[slot] for slot in crossing.slots)
        if crossing.cargo in NUMBERS:
            self._check_numbers(crossing.cargo, values[0])
            return (values[0],)
        loads: Gradients = tuple(values.get(slot) for slot in range(len(self.chain.features[crossing.index])))
        return loads

    def _check_numbers(self, cargo: Cargo, numbers: Tensor) -> None:
        match cargo:
            case Cargo.NORMS:
                check_norms(numbers, is_scaled=self.recipe.is_scaled)
            case Cargo.COEFFICIENT:
                check_coefficient(numbers, is_scaled=self.recipe.is_scaled)
            case Cargo.SCALE:
                check_scale(float(numbers))

    def _check_length(self, crossing: Crossing, slot: int, longest: TensorSpec, tensor: TensorSpec) -> None:
        """Refuse a tensor that is not that of any length. longest: that of the greatest."""
        lengths = self.chain.lengths
        assert lengths is not None, "the caller has seen to it"
        length = lengths.of(crossing.index, slot, tensor.shape)
        if length is None or tensor != lengths.spec(crossing.index, slot, longest, length):
            raise ProtocolError(
                f"{crossing.cargo} {crossing.index} is {tensor.dtype} {tensor.shape}; {longest.dtype} {longest.shape} was "
                f"expected, or what it is for a length of 1 to {lengths.longest}"
            )

    def _check_labels(self, labels: TensorSpec, rows: int) -> None:
        if not labels.shape or labels.shape[0] != rows:
            raise ProtocolError(f"labels {labels.shape} came for {rows} samples")
        self.check_labels(labels)
