"""The features of samples as the receiver of a crossing has them, kept at both ends, so that only what changes has to cross.

They are state of a worker: a checkpoint has them, and a return to it puts them back. Knows nothing of how they are sent.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from shared.errors import ProtocolError, StorageError
from shared.model.spec import TensorSpec


class KeptFeatures:
    """The last feature of each sample on one crossing, slot by slot. One thread at a time uses it."""

    def __init__(self, samples: int) -> None:
        """samples: of the data set. Memory is taken as features come."""
        self._samples = samples
        self._crossing = ""
        """Name of the crossing whose features these are."""
        self._values: dict[int, Tensor] = {}
        """[samples, ...] by slot."""
        self._is_kept: dict[int, Tensor] = {}
        """bool [samples] by slot."""

    def begin(self, crossing: str, specs: Mapping[int, TensorSpec]) -> None:
        """Keep features of this crossing from here on: also those that are kept, if they are of the same one.

        specs: by slot, of a batch.
        """
        shapes = {slot: (self._samples, *spec.shape[1:]) for slot, spec in specs.items()}
        if crossing == self._crossing and shapes == {slot: tuple(one.shape) for slot, one in self._values.items()}:
            return
        self._crossing = crossing
        self._values = {slot: torch.empty(shapes[slot], dtype=spec.dtype) for slot, spec in specs.items()}
        self._is_kept = {slot: torch.zeros(self._samples, dtype=torch.bool) for slot in specs}

    def rows(self, slot: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of these samples, and a flag of each: without it its feature is not kept, and means nothing.

        numbers: int64 [B]. Raises ProtocolError for a sample that is not one of the data set.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self._samples:
            raise ProtocolError(
                f"a sample came that is none of the {self._samples} of the data set, which are numbered from 0 on"
            )
        return self._values[slot].index_select(0, numbers), self._is_kept[slot][numbers]

    def keep(self, slot: int, numbers: Tensor, features: Tensor) -> None:
        """Keep the features of samples that `rows` has accepted, in place of earlier ones."""
        self._values[slot].index_copy_(0, numbers, features)
        self._is_kept[slot][numbers] = True

    def state(self) -> dict[str, Tensor]:
        """Copy what is kept, as a checkpoint has it."""
        copied: dict[str, Tensor] = {}
        for slot, is_kept in self._is_kept.items():
            numbers = is_kept.nonzero().view(-1)
            copied[f"{self._crossing}/{slot}/numbers"] = numbers
            copied[f"{self._crossing}/{slot}/features"] = self._values[slot].index_select(0, numbers)
        return copied

    def put_back(self, state: Mapping[str, Tensor]) -> None:
        """Keep what `state` has copied, and nothing else. Raises StorageError for tensors that it would not have copied."""
        crossing, values, is_kept = "", {}, {}
        try:
            for entry, features in state.items():
                crossing, slot, what = entry.rsplit("/", 2)
                if what == "features":
                    numbers = state[f"{crossing}/{slot}/numbers"]
                    rows = torch.empty((self._samples, *features.shape[1:]), dtype=features.dtype)
                    values[int(slot)] = rows.index_copy_(0, numbers, features)
                    is_kept[int(slot)] = torch.zeros(self._samples, dtype=torch.bool).index_fill_(0, numbers, True)
        except (KeyError, ValueError, IndexError, RuntimeError) as cause:
            raise StorageError(
                f"the features in a checkpoint are not those of a data set of {self._samples} samples: {cause}"
            ) from cause
        self._crossing, self._values, self._is_kept = crossing, values, is_kept
