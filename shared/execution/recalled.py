"""The features and labels of samples, kept where they come, so that each crosses once and is computed once.

They lie in a file that memory maps, one tensor of all samples behind the other, and are written when they first come. A file is
begun anew with every placement and after every return to a checkpoint, where the device begins to send them anew, too: both
sides know what is here by the steps since then, and the file goes when a worker stops. It is the trainer's, or that of a
device with all blocks.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from shared.errors import ProtocolError, StorageError
from shared.execution.crossing_types import CrossingTypes
from shared.files.private_files import make_folder, open_file
from shared.model.chain import Chain
from shared.model.features import Features, FeatureSpecs, Slots
from shared.model.spec import TensorSpec
from shared.placement import ModelFacts, Placement, StepPlan, kept_stage
from shared.training.copied_features import MOST_COPIES
from shared.training.kept_features import NUMBER_BYTES
from shared.training.losses import widened
from shared.training.recipe import Recipe

FILE = "features"
"""Name of the file."""


def kept_feature(
    chain: Chain, recipe: Recipe, placement: Placement, model: ModelFacts
) -> tuple[FeatureSpecs, tuple[int, ...]]:
    """Return the kinds of the tensors of the feature that is kept, slot by slot, and the slots that are. See `kept_stage`."""
    stage = kept_stage(placement, model)
    return CrossingTypes(chain, recipe, placement).specs(stage.first), model.read_slots(stage.first, stage.stop)


def kept_bytes(chain: Chain, recipe: Recipe, placement: Placement, model: ModelFacts) -> int:
    """Count the bytes that are kept of one sample: its record, or its feature and a number of each slot."""
    specs, slots = kept_feature(chain, recipe, placement, model)
    numbers_bytes = NUMBER_BYTES * len(slots) if recipe.changes is not None else 0
    return record_bytes(specs, slots, recipe.recalled_label_bytes) + numbers_bytes


def all_kept_bytes(chain: Chain, recipe: Recipe, placement: Placement, model: ModelFacts) -> int:
    """Count the bytes that are kept of all samples, where they are recalled or changes of them are sent; 0 elsewhere."""
    samples = recipe.recalled_samples if recipe.changes is None else recipe.changes.samples
    return samples and samples * kept_bytes(chain, recipe, placement, model)


def kept_in_memory(chain: Chain, recipe: Recipe, plan: StepPlan, worker: str) -> int:
    """Count the bytes of memory for what a worker keeps of samples at most: flags where a file has the features."""
    if plan.recalls_at(worker):
        return recipe.recalled_samples
    return MOST_COPIES * all_kept_bytes(chain, recipe, plan.placement, plan.model) if plan.sends_changes else 0


def begin_recall(chain: Chain, recipe: Recipe, folder: Path, plan: StepPlan) -> "Recalled":
    """Begin to keep features anew. folder: for them alone."""
    feature = kept_feature(chain, recipe, plan.placement, plan.model)
    return Recalled(folder, recipe.recalled_samples, *feature, recipe.recalled_label_bytes)


def record_bytes(specs: FeatureSpecs, slots: Sequence[int], label_bytes: int) -> int:
    """Count the bytes that are kept of one sample. slots: those of the feature that are kept."""
    return sum(specs[slot].bytes // specs[slot].shape[0] for slot in slots) + label_bytes


class Recalled:
    """The features and labels of the samples of one data set. Used by one thread."""

    def __init__(self, folder: Path, samples: int, specs: FeatureSpecs, slots: Sequence[int], label_bytes: int) -> None:
        """folder: for the file alone. It is made, in full size, when the first features come.

        specs: of the feature, slot by slot. slots: those that are kept. label_bytes: of one sample.
        """
        self._path = folder / FILE
        self._specs = specs
        self._slots = tuple(slots)
        self._record_bytes = record_bytes(specs, slots, label_bytes)
        """Bytes of one sample."""
        self._label_bytes = label_bytes
        self._is_kept = torch.zeros(samples, dtype=torch.bool)
        """Flag of each sample: whether it has come."""
        self._kinds: FeatureSpecs = ()
        """Kinds of what is kept, for one sample, once something has come: of the slots, then of the labels."""
        self._columns: list[Tensor] = []
        """The same of all samples, as [samples, bytes] over the file."""

    @property
    def bytes(self) -> int:
        """Count the bytes of the file."""
        return len(self._is_kept) * self._record_bytes

    def take(self, numbers: Tensor, features: Slots, labels: Features) -> tuple[Slots, Features]:
        """Keep the features and labels of the samples that are new, and return those of all samples of a batch.

        numbers: of the samples of the batch, int32 [B]. features, labels: of those that are not here, in the same order.
        Raises ProtocolError for a sample that is not one of the data set, for more or fewer features than are lacking, and for
        labels of another kind than before; StorageError where the disk has no room.
        """
        numbers = numbers.long()
        try:
            is_kept = self._is_kept.index_select(0, numbers)
        except (IndexError, RuntimeError) as cause:
            raise ProtocolError(
                f"a sample came that is none of the {len(self._is_kept)} of the data set, which are numbered from 0 on"
            ) from cause
        lacking = numbers[:0] if is_kept.all() else numbers[~is_kept]
        columns = [features[slot] for slot in self._slots] + [widened(one) for one in labels]
        if any(one is None or len(one) != len(lacking) for one in columns):
            raise ProtocolError(
                f"features came of other samples than the {len(lacking)} of the batch that are not here"
            )
        if len(lacking):
            self._keep(lacking, [one for one in columns if one is not None])
        return self._recalled(numbers)

    def close(self) -> None:
        """Keep nothing any more, and remove the file."""
        if self._kinds:
            self._columns, self._kinds = [], ()  # the memory goes with them
            with suppress(OSError):
                self._path.unlink()

    def _keep(self, numbers: Tensor, columns: Sequence[Tensor]) -> None:
        kinds = tuple(TensorSpec((1, *one.shape[1:]), one.dtype) for one in columns)
        if not self._kinds:
            if (found := sum(one.bytes for one in kinds[len(self._slots) :])) != self._label_bytes:
                raise ProtocolError(f"labels of {found} bytes a sample came; {self._label_bytes} were said")
            self._columns, self._kinds = self._mapped([one.bytes for one in kinds]), kinds
        if kinds != self._kinds:
            raise ProtocolError("features or labels came of another shape or type than those of the first samples")
        for column, one in zip(self._columns, columns, strict=True):
            column.index_copy_(0, numbers, one.cpu().reshape(len(numbers), -1).contiguous().view(torch.uint8))
        self._is_kept[numbers] = True

    def _recalled(self, numbers: Tensor) -> tuple[Slots, Features]:
        found = [
            column.index_select(0, numbers).view(kind.dtype).view(len(numbers), *kind.shape[1:])
            for column, kind in zip(self._columns, self._kinds, strict=True)
        ]
        by_slot = dict(zip(self._slots, found, strict=False))
        return tuple(map(by_slot.get, range(len(self._specs)))), tuple(found[len(self._slots) :])

    def _mapped(self, widths: Sequence[int]) -> list[Tensor]:
        """Make the file in place of an earlier one. widths: bytes of one sample in each column. Raises StorageError."""
        try:
            make_folder(self._path.parent)
            self._path.unlink(missing_ok=True)
            handle = open_file(self._path, os.O_RDWR | os.O_EXCL)
            try:
                os.posix_fallocate(handle, 0, self.bytes)  # or a write to memory would fail where the disk is full
                memory = mmap.mmap(handle, self.bytes)
            finally:
                os.close(handle)
        except OSError as cause:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            raise StorageError(
                f"{self._path} cannot take the {self.bytes} bytes of the features that are to be kept: {cause.strerror}"
            ) from cause
        parts = torch.split(
            torch.frombuffer(memory, dtype=torch.uint8), [len(self._is_kept) * width for width in widths]
        )
        return [part.view(len(self._is_kept), -1) for part in parts]
