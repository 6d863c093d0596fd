"""Forms: how the load of each crossing travels, made once for each crossing of a placement.

Labels are a tensor for each slot that crosses, as a feature and an error gradient (`feature_form`); norms, a coefficient and a
scale are one; the load of a shared block is a tensor for each of its entries (`block_form`).
"""

from collections.abc import Callable

import torch

from shared.errors import ProtocolError
from shared.execution.block_slices import Slices
from shared.execution.crossing_types import CrossingTypes
from shared.execution.residuals import Residuals
from shared.execution.step_in_flight import EncodedSlots, Load
from shared.model.chain import Chain
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice, Cargo, Crossing, Placement, Route
from shared.registry import SINCE, by_sample
from shared.runtime.announcements import ExpectedTensor
from shared.runtime.block_form import BlockEntry, BlockForm, entries_of
from shared.runtime.feature_form import ChangedFeatureForm, FeatureForm
from shared.runtime.form import Form, decoded_slots
from shared.training.clipping import check_coefficient, check_norms, count_of
from shared.training.kept_features import KeptFeatures
from shared.training.loss_scale import check_scale
from shared.training.losses import COUNTS
from shared.training.recipe import Recipe


def numbers_spec(chain: Chain, crossing: Crossing) -> TensorSpec:
    """The form of a load of numbers by which blocks are updated together."""
    of_blocks = crossing.cargo is Cargo.NORMS
    count = sum(count_of(chain.blocks[block]) for block in crossing.slots) if of_blocks else 1
    return TensorSpec((count,), torch.float64)


class LabelForm(Form):
    """Labels, which the loss judges."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        check_labels: Callable[[TensorSpec], None],
        *,
        recalls: bool = False,
        counts: bool = False,
    ) -> None:
        """check_labels: refuses labels that the loss cannot take; raises an IsthmusError.

        recalls: True where labels of samples that are kept are left out, and the last slot has the numbers of all samples.
        counts: True where the last slot has the counts of the labels; not with recalls.
        """
        super().__init__(crossing, placement, dict.fromkeys(crossing.slots, "raw"))
        self._check_labels = check_labels
        self._recalls = recalls
        self._counts = counts

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """See `Form.expected`."""
        rows = self._rows(samples)
        if self._counts and slot == self.slots[-1]:
            return ExpectedTensor(self.key(step, slot), self.version, "raw", COUNTS)
        if self._recalls and slot == self.slots[-1]:
            return ExpectedTensor(self.key(step, slot), self.version, "raw", TensorSpec((rows,), torch.int32))

        def check(labels: TensorSpec) -> None:
            if not labels.shape or labels.shape[0] > rows or (labels.shape[0] < rows and not self._recalls):
                raise ProtocolError(f"labels {labels.shape} came for {rows} samples")
            self._check_labels(labels)

        return ExpectedTensor(self.key(step, slot), self.version, "raw", check)

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        values = decoded_slots(encoded)
        if self._counts and not bool(values[self.slots[-1]].isfinite().all()):
            raise ProtocolError("the counts of labels that came are no finite numbers")
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
        numbers = decoded_slots(encoded)[0]
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


class Forms:
    """A maker of the forms of all crossings of one placement of a chain."""

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
        kept: KeptFeatures | None = None,
    ) -> None:
        """check_labels: see `LabelForm`. recipe: in some precisions the loss is scaled, so that gradients may overflow.

        residuals: the losses of codecs on the gradients of weights that this worker has sent. merged: True where a group
        updates, so that slices of blocks cross. recalls: see `StepPlan.recalls`. kept: the features of samples, where what
        changes of them crosses; see `StepPlan.sends_changes`.
        """
        self.placement = placement
        self._chain = chain
        self._check_labels = check_labels
        self._recipe = recipe
        self._recalls = recalls
        self._kept = kept
        self._residuals = residuals or Residuals()
        self._types = CrossingTypes(chain, recipe, placement)
        self._slices = Slices(chain, recipe, merged=merged)
        self._entries: dict[tuple[Cargo, BlockSlice], dict[int, BlockEntry]] = {}

    def of(self, crossing: Crossing) -> Form:
        """Make the form of a crossing."""
        placement, chain = self.placement, self._chain
        codec = placement.codecs.get(Route(crossing.sender, crossing.receiver, crossing.cargo), "raw")
        match crossing.cargo:
            case Cargo.FEATURE | Cargo.ERROR_GRADIENT:
                coded, codec = chain.coded_slots(crossing.index), by_sample(codec) if self._recalls else codec
                kept = self._kept if crossing.cargo is Cargo.FEATURE else None
                changes = None if kept is None else self._recipe.changes
                if changes is not None:
                    codec = f"{codec}{SINCE}{changes.codec}"
                codecs = {slot: codec if coded[slot] else "raw" for slot in crossing.slots}
                if kept is None or changes is None:
                    return FeatureForm(crossing, placement, codecs, chain, self._types, recalls=self._recalls)
                return ChangedFeatureForm(crossing, placement, codecs, chain, self._types, kept, changes.above)
            case Cargo.LABEL:
                counts = (
                    self._recipe.mean == "token" and len(crossing.slots) > self._recipe.label_tensors
                )  # not to evaluate
                return LabelForm(crossing, placement, self._check_labels, recalls=self._recalls, counts=counts)
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
