"""Forms: how the load of each crossing travels, made once for each crossing of a placement.

A feature, an error gradient and labels are a tensor for each slot that crosses; norms, a coefficient and a scale are one; the
load of a shared block is a tensor for each of its entries (`block_entries`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.execution.block_slices import Slices
from shared.execution.crossing_types import CrossingTypes
from shared.execution.residuals import Residuals
from shared.execution.shared_blocks import BlockPart, CodedWeights, difference_name
from shared.execution.step_in_flight import EncodedSlots, Load
from shared.model.chain import Chain
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice, Cargo, Crossing, Placement, Route
from shared.registry import by_sample, codec_spec
from shared.runtime.announcements import ExpectedTensor
from shared.runtime.block_entries import BlockEntry, entries_of
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


def numbers_spec(chain: Chain, crossing: Crossing) -> TensorSpec:
    """The form of a load of numbers by which blocks are updated together."""
    of_blocks = crossing.cargo is Cargo.NORMS
    count = sum(count_of(chain.blocks[block]) for block in crossing.slots) if of_blocks else 1
    return TensorSpec((count,), torch.float64)


class Form(ABC):
    """The form in which one crossing travels. Each kind of cargo has one of its own."""

    def __init__(self, crossing: Crossing, placement: Placement, codecs: Mapping[int, str]) -> None:
        """codecs: the name of each tensor's codec, by slot."""
        self.crossing = crossing
        self.version = placement.version
        """Version of the placement."""
        self.codecs = codecs
        self.slots = tuple(codecs)
        """The slots that cross, in their order."""
        self.role = ROLES[crossing.cargo]
        self._batch_size = placement.batch_size
        self.early = int(crossing.cargo is Cargo.WEIGHTS)
        """Steps by which its key is early: weights bear the step that they are for, and there is none before the first."""
        self.tells_length = False
        """True if `length` can tell the length of a batch."""
        named = {name: codec_by_name(name) for name in ("raw", *codecs.values())}
        self._codec_of = {slot: named[name] for slot, name in codecs.items()}
        self.is_lossless = not any(codec_spec(name).lossy for name in codecs.values())
        """True if no codec takes anything from the tensors, so that to encode and to decode them takes no time."""
        self.quick_bytes = min((named[name].QUICK_BYTES for name in codecs.values()), default=named["raw"].QUICK_BYTES)
        """Largest size of a load that is coded or copied quicker than it is handed to another thread."""

    def key(self, step: int, slot: int) -> TensorKey:
        """Return the key of a tensor in the stream."""
        return TensorKey(step + self.early, self.role, self.crossing.index, slot)

    def first_key(self, step: int) -> TensorKey:
        """Return the key of the first tensor: its slot tells apart what one block reads."""
        return self.key(step, self.slots[0])

    @abstractmethod
    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """Describe the tensor that must come for one slot. samples: of the whole batch."""

    def encode(self, load: Load) -> EncodedSlots:
        """Return the tensors of a load by slot. Computes.

        To be called once for a gradient of weights: what its codec takes from it goes with the next one.
        """
        assert isinstance(load, tuple), "the loads of shared blocks have a form of their own"
        encoded: EncodedSlots = {}
        for slot, codec in self._codec_of.items():
            tensor = load[slot]
            encoded[slot] = None if tensor is None else codec.encode(tensor.cpu())
        return encoded

    @abstractmethod
    def decode(self, encoded: EncodedSlots) -> Load:
        """Return the load of these slots. Computes. Raises ProtocolError for bytes that no peer could have encoded."""

    def length(self, slot: int, shape: Sequence[int]) -> int | None:  # noqa: ARG002 - only features have one
        """Return the length of a batch, by the shape of one of its tensors; None where that does not tell it."""
        return None

    @abstractmethod
    def worst_bytes(self, *, kept: bool) -> int:
        """Count the bytes of a load at its worst: as it travels, and as it was decoded.

        kept: the receiver may begin again, so that weights of the step before are there, too.
        """

    def _rows(self, samples: int) -> int:
        return self.crossing.rows.scaled(samples, self._batch_size).count


class FeatureForm(Form):
    """A feature or an error gradient. Some slots go raw; see `Chain.coded_slots`."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        codecs: Mapping[int, str],
        chain: Chain,
        types: CrossingTypes,
        *,
        recalls: bool = False,
    ) -> None:
        """recalls: True where the feature of samples that are kept is left out."""
        super().__init__(crossing, placement, codecs)
        self._recalls = recalls
        self._chain = chain
        self._specs = types.specs(crossing.index)
        self._is_gradient = crossing.cargo is Cargo.ERROR_GRADIENT
        self.tells_length = chain.lengths is not None

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """See `Form.expected`."""
        spec, rows, lengths = self._specs[slot], self._rows(samples), self._chain.lengths
        whole = TensorSpec((rows, *spec.shape[1:]), spec.dtype)
        tensor: TensorSpec | Callable[[TensorSpec], None] = whole
        if rows and lengths is not None and lengths.varies(self.crossing.index, slot):
            tensor = partial(self._check_length, slot, whole)
        elif self._recalls:
            tensor = partial(_check_part, whole)
        return ExpectedTensor(
            self.key(step, slot), self.version, self.codecs[slot], tensor, may_be_absent=self._is_gradient
        )

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        load: list[Tensor | None] = [None] * len(self._specs)
        for slot, each in encoded.items():
            if each is not None:
                load[slot] = codec_by_name(each.codec).decode(each)
        return tuple(load)

    def length(self, slot: int, shape: Sequence[int]) -> int | None:
        """See `Form.length`."""
        if self._chain.lengths is None or not shape or not shape[0]:
            return None  # of a part without samples nothing has a length
        return self._chain.lengths.of(self.crossing.index, slot, shape)

    def worst_bytes(self, *, kept: bool) -> int:  # noqa: ARG002 - only weights are kept
        """See `Form.worst_bytes`."""
        total = 0
        for slot in self.slots:
            spec = self._specs[slot]
            tensor = TensorSpec((self.crossing.rows.count, *spec.shape[1:]), spec.dtype)
            encoded = self._codec_of[slot].encoded_bytes(tensor.shape, tensor.dtype)
            total += tensor.bytes + max(tensor.bytes, encoded)
        return total

    def _check_length(self, slot: int, longest: TensorSpec, tensor: TensorSpec) -> None:
        """Refuse a tensor that is not that of any length. longest: that of the greatest."""
        lengths, index = self._chain.lengths, self.crossing.index
        assert lengths is not None, "the caller has seen to it"
        length = lengths.of(index, slot, tensor.shape)
        if length is None or tensor != lengths.spec(index, slot, longest, length):
            raise ProtocolError(
                f"{self.crossing.cargo} {index} is {tensor.dtype} {tensor.shape}; {longest.dtype} {longest.shape} was "
                f"expected, or what it is for a length of 1 to {lengths.longest}"
            )


class LabelForm(Form):
    """Labels, which the loss judges."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        check_labels: Callable[[TensorSpec], None],
        *,
        recalls: bool = False,
    ) -> None:
        """check_labels: refuses labels that the loss cannot take; raises an IsthmusError.

        recalls: True where labels of samples that are kept are left out, and the last slot has the numbers of all samples.
        """
        super().__init__(crossing, placement, dict.fromkeys(crossing.slots, "raw"))
        self._check_labels = check_labels
        self._recalls = recalls

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """See `Form.expected`."""
        rows = self._rows(samples)
        if self._recalls and slot == self.slots[-1]:
            return ExpectedTensor(self.key(step, slot), self.version, "raw", TensorSpec((rows,), torch.int32))

        def check(labels: TensorSpec) -> None:
            if not labels.shape or labels.shape[0] > rows or (labels.shape[0] < rows and not self._recalls):
                raise ProtocolError(f"labels {labels.shape} came for {rows} samples")
            self._check_labels(labels)

        return ExpectedTensor(self.key(step, slot), self.version, "raw", check)

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        values = _decoded(encoded)
        return tuple(values[slot] for slot in self.slots)

    def worst_bytes(self, *, kept: bool) -> int:  # noqa: ARG002 - only weights are kept
        """See `Form.worst_bytes`. Labels are counted when they are announced."""
        return 0


class NumbersForm(Form):
    """A few numbers by which all blocks are updated together: norms, a coefficient, a scale."""

    def __init__(self, crossing: Crossing, placement: Placement, chain: Chain, recipe: Recipe) -> None:
        super().__init__(crossing, placement, {0: "raw"})
        self._recipe = recipe
        self._spec = numbers_spec(chain, crossing)

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:  # noqa: ARG002 - the same for every batch
        """See `Form.expected`."""
        return ExpectedTensor(self.key(step, slot), self.version, "raw", self._spec)

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        numbers = _decoded(encoded)[0]
        match self.crossing.cargo:
            case Cargo.NORMS:
                check_norms(numbers, is_scaled=self._recipe.is_scaled)
            case Cargo.COEFFICIENT:
                check_coefficient(numbers, is_scaled=self._recipe.is_scaled)
            case Cargo.SCALE:
                check_scale(float(numbers))
        return (numbers,)

    def worst_bytes(self, *, kept: bool) -> int:  # noqa: ARG002 - only weights are kept
        """See `Form.worst_bytes`."""
        return 2 * self._spec.bytes


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

    def encode(self, load: Load) -> EncodedSlots:
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
        for slot, value in sorted(_decoded(encoded).items()):
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


class Forms:
    """The forms of all crossings of one placement of a chain, each made when it is asked for first."""

    def __init__(
        self,
        placement: Placement,
        chain: Chain,
        check_labels: Callable[[TensorSpec], None],
        recipe: Recipe,
        residuals: Residuals | None = None,
        *,
        merged: bool = False,
        recalls: bool = False,
    ) -> None:
        """check_labels: see `LabelForm`. recipe: in some precisions the loss is scaled, so that gradients may overflow.

        residuals: the losses of codecs on the gradients of weights that this worker has sent. merged: True where a group
        updates, so that slices of blocks cross. recalls: see `StepPlan.recalls`.
        """
        self.placement = placement
        self._chain = chain
        self._check_labels = check_labels
        self._recipe = recipe
        self._recalls = recalls
        self._residuals = residuals or Residuals()
        self._types = CrossingTypes(chain, recipe, placement)
        self._slices = Slices(chain, recipe, merged=merged)
        self._made: dict[Crossing, Form] = {}
        self._entries: dict[tuple[Cargo, BlockSlice], dict[int, BlockEntry]] = {}

    def of(self, crossing: Crossing) -> Form:
        """Return the form of a crossing."""
        if crossing not in self._made:
            self._made[crossing] = self._form(crossing)
        return self._made[crossing]

    def _form(self, crossing: Crossing) -> Form:
        placement, chain = self.placement, self._chain
        codec = placement.codecs.get(Route(crossing.sender, crossing.receiver, crossing.cargo), "raw")
        match crossing.cargo:
            case Cargo.FEATURE | Cargo.ERROR_GRADIENT:
                coded, codec = chain.coded_slots(crossing.index), by_sample(codec) if self._recalls else codec
                codecs = {slot: codec if coded[slot] else "raw" for slot in crossing.slots}
                return FeatureForm(crossing, placement, codecs, chain, self._types, recalls=self._recalls)
            case Cargo.LABEL:
                return LabelForm(crossing, placement, self._check_labels, recalls=self._recalls)
            case Cargo.WEIGHT_GRADIENT | Cargo.WEIGHTS:
                return BlockForm(crossing, placement, self._entries_of(crossing), codec, self._residuals)
        return NumbersForm(crossing, placement, chain, self._recipe)

    def _entries_of(self, crossing: Crossing) -> dict[int, BlockEntry]:
        """Return the entries of a slice by slot: those of a block are numbered through."""
        cargo, block, first = crossing.cargo, crossing.index, 0
        if (cargo, crossing.of_block) not in self._entries:
            for one in self._slices.numbered(block):
                found = entries_of(self._chain.blocks[block], cargo, self._slices[one])
                self._entries[cargo, one] = dict(enumerate(found, first))
                first += len(found)
        return self._entries[cargo, crossing.of_block]


def _check_part(whole: TensorSpec, tensor: TensorSpec) -> None:
    """Refuse a tensor that is not one of some samples of a batch. whole: that of all of them."""
    if not tensor.shape or tensor != TensorSpec((tensor.shape[0], *whole.shape[1:]), whole.dtype):
        raise ProtocolError(
            f"a feature is {tensor.dtype} {tensor.shape}; {whole.dtype} {whole.shape} was expected, or less"
        )
    if tensor.shape[0] > whole.shape[0]:
        raise ProtocolError(f"a feature of {tensor.shape[0]} samples came for a batch of {whole.shape[0]}")


def _decoded(encoded: EncodedSlots) -> dict[int, Tensor]:
    return {slot: codec_by_name(each.codec).decode(each) for slot, each in encoded.items() if each is not None}
