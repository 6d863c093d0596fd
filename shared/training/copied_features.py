"""Copies of features that are kept, as increments: each has what has changed since the one before it.

They are folded into one once they would have more than `MOST_WHOLES` times the bytes of what is kept. The copies alone are made
where steps are computed. What that takes of memory and disk at most is said here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shared.errors import StorageError

if TYPE_CHECKING:
    from shared.checkpoint import Increment

MOST_WHOLES = 2
"""The bytes of all increments at most, by those of all features that are kept. More would be written and read less often."""
MOST_COPIES = 4
"""Copies of the features of all samples in memory at most: where steps are computed, and in a checkpoint that folds increments
as they are read, as one, and as its bytes."""


@dataclass(slots=True)
class Written:
    """The last copy that lies on disk."""

    last: tuple[int, tuple["Increment", ...]] = (0, ())
    """The number of the last copy that was written, and the increments with it, the oldest first."""


@dataclass(frozen=True, slots=True)
class CopiedFeatures:
    """A copy of features, to be written as the next increment."""

    rows: dict[str, Tensor]
    """`CROSSING/SLOT/numbers` of samples, and their `CROSSING/SLOT/features`; none where nothing has changed."""
    increments: tuple["Increment", ...]
    """Increments that have the features of all other samples, the oldest first; none where these are all."""
    changed_bytes: int
    """Bytes of these features, with the numbers of their samples."""
    whole_bytes: int
    """Bytes of the features of all samples, counted alike."""
    number: int
    _written: Written = field(repr=False)

    @property
    def is_one_too_many(self) -> bool:
        """Tell whether there would be too much with this increment: all are folded into one."""
        from shared.checkpoint import MAX_INCREMENTS  # late: what trains without checkpoints does not need it

        increment_bytes = sum(increment.size_bytes for increment in self.increments) + self.changed_bytes
        return bool(self.rows) and (
            len(self.increments) == MAX_INCREMENTS or increment_bytes > MOST_WHOLES * self.whole_bytes
        )

    def lost(self) -> None:
        """Note that the increments cannot be read. The next copy has all."""
        self._written.last = 0, ()

    def written(self, increments: tuple["Increment", ...]) -> None:
        """Note that this copy lies on disk, as the last of these increments. The next one has what changes from here on."""
        self._written.last = self.number, increments


def most_written_bytes(whole_bytes: int, checkpoints: int) -> int:
    """Count the bytes of the increments of so many checkpoints at most: the oldest has up to `MOST_WHOLES`, and each other one
    adds a whole at most. whole_bytes: of the features of all samples."""
    return (MOST_WHOLES + checkpoints - 1) * whole_bytes


def folded(increments: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the last feature of each sample of all increments, as `CopiedFeatures.rows` has them. Raises StorageError.

    increments: the newest first. One is needed at a time.
    """
    found: dict[str, list[Tensor]] = {}
    try:
        for increment in increments:
            for numbers in [name for name in increment if name.endswith("/numbers")]:
                features = f"{numbers.removesuffix('numbers')}features"
                is_last = _are_last(increment[numbers], increment[features], found.setdefault(numbers, []))
                for name in (numbers, features):
                    found.setdefault(name, []).append(increment[name] if is_last.all() else increment[name][is_last])
            del increment  # or the memory of the oldest, which has most, would be held to the end
        return {name: _joined(parts) for name, parts in found.items()}
    except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as cause:
        raise StorageError(f"the features in a checkpoint do not fit each other: {cause}") from cause


def _are_last(numbers: Tensor, features: Tensor, later: list[Tensor]) -> Tensor:
    """Return a flag of each sample of an increment: whether no later increment has it. later: the numbers of those."""
    if len(numbers) != len(features):
        raise ValueError(f"an increment has {len(numbers)} samples and {len(features)} features")
    return ~torch.isin(numbers, torch.cat(later)) if later else torch.ones(len(numbers), dtype=torch.bool)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
