"""The features of samples as the receiver of a crossing has them, kept at both ends, so that only what changes has to cross.

They are state of a worker: a checkpoint has them, and a return to it puts them back. A checkpoint copies what has changed since
the one before it (`copied_features`). Knows nothing of how they are sent.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from shared.errors import ProtocolError, StorageError
from shared.model.spec import TensorSpec
from shared.training.copied_features import CopiedFeatures, Written

NUMBER_BYTES = torch.int64.itemsize
"""Bytes of what is kept beside a feature: the number of its copy, or in a copy that of its sample."""


class KeptFeatures:
    """The last feature of each sample on one crossing, slot by slot. One thread at a time uses it."""

    def __init__(self, samples: int) -> None:
        """samples: of the data set. Memory is taken as features come."""
        self._samples = samples
        self._crossing = ""
        """Name of the crossing whose features these are."""
        self._values: dict[int, Tensor] = {}
        """[samples, ...] by slot."""
        self._kept_before: dict[int, Tensor] = {}
        """Number of the first copy that has the feature, int64 [samples] by slot; 0 where none is kept."""
        self._next_copy = 1
        self._written = Written()

    def begin(self, crossing: str, specs: Mapping[int, TensorSpec]) -> None:
        """Keep features of this crossing from here on: also those that are kept, if they are of the same one.

        specs: by slot, of a batch.
        """
        shapes = {slot: (self._samples, *spec.shape[1:]) for slot, spec in specs.items()}
        if crossing == self._crossing and shapes == {slot: tuple(one.shape) for slot, one in self._values.items()}:
            return
        self._crossing = crossing
        self._values = {slot: torch.empty(shapes[slot], dtype=spec.dtype) for slot, spec in specs.items()}
        self._kept_before = {slot: torch.zeros(self._samples, dtype=torch.int64) for slot in specs}
        self._written = Written()

    def rows(self, slot: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of these samples, and a flag of each: without it its feature is not kept, and means nothing.

        numbers: int64 [B]. Raises ProtocolError for a sample that is not one of the data set.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self._samples:
            raise ProtocolError(
                f"a sample came that is none of the {self._samples} of the data set, which are numbered from 0 on"
            )
        return self._values[slot].index_select(0, numbers), self._kept_before[slot][numbers] > 0

    def keep(self, slot: int, numbers: Tensor, features: Tensor) -> None:
        """Keep the features of samples that `rows` has accepted, in place of earlier ones."""
        self._values[slot].index_copy_(0, numbers, features)
        self._kept_before[slot][numbers] = self._next_copy

    def copy(self) -> CopiedFeatures:
        """Copy what has changed since the last copy that was written."""
        since, increments = self._written.last
        changed, whole = self._bytes(since), self._bytes(0)
        if changed == whole > 0:
            increments = ()
        rows = self._rows(since) if changed else {}
        copied = CopiedFeatures(rows, increments, changed, whole, self._next_copy, self._written)
        self._next_copy += 1
        return copied

    def _bytes(self, since: int) -> int:
        """Count the bytes of the features that the copy of this number lacks, with the numbers of their samples."""
        return sum(
            int((kept_before > since).sum()) * (math.prod(values.shape[1:]) * values.element_size() + NUMBER_BYTES)
            for kept_before, values in zip(self._kept_before.values(), self._values.values(), strict=True)
        )

    def _rows(self, since: int) -> dict[str, Tensor]:
        copied: dict[str, Tensor] = {}
        for slot, kept_before in self._kept_before.items():
            numbers = (kept_before > since).nonzero().view(-1)
            copied[f"{self._crossing}/{slot}/numbers"] = numbers
            copied[f"{self._crossing}/{slot}/features"] = self._values[slot].index_select(0, numbers)
        return copied

    def put_back(self, state: Mapping[str, Tensor]) -> None:
        """Keep these features, as `folded` returns them, and nothing else; the next copy has all.

        Raises StorageError for tensors that no increments of this data set have.
        """
        crossing, values, kept_before = "", {}, {}
        try:
            for entry, features in state.items():
                crossing, slot, what = entry.rsplit("/", 2)
                if what == "features":
                    numbers = state[f"{crossing}/{slot}/numbers"]
                    rows = torch.empty((self._samples, *features.shape[1:]), dtype=features.dtype)
                    values[int(slot)] = rows.index_copy_(0, numbers, features)
                    none = torch.zeros(self._samples, dtype=torch.int64)
                    kept_before[int(slot)] = none.index_fill_(0, numbers, self._next_copy)
        except (KeyError, ValueError, IndexError, RuntimeError) as cause:
            raise StorageError(
                f"the features in a checkpoint are not those of a data set of {self._samples} samples: {cause}"
            ) from cause
        self._crossing, self._values, self._kept_before, self._written = crossing, values, kept_before, Written()
