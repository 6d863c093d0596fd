"""Copies of features that are kept, as links of a chain: each has what has changed since the one before it.

A chain is folded into one link once it would have more than `MOST_WHOLES` times the bytes of what is kept. The copies alone are
made where steps are computed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shared.checkpoint import MAX_LINKS, Link
from shared.errors import StorageError

MOST_WHOLES = 2
"""The bytes of a chain at most, by those of all features that are kept. More would be written and read less often."""


@dataclass(slots=True)
class Written:
    """The last copy that lies on disk."""

    last: tuple[int, tuple[Link, ...]] = (0, ())
    """The number of the last copy that was written, and the links with it, the oldest first."""


@dataclass(frozen=True, slots=True)
class CopiedFeatures:
    """A copy of features, to be written as the next link."""

    rows: dict[str, Tensor]
    """`CROSSING/SLOT/numbers` of samples, and their `CROSSING/SLOT/features`; none where nothing has changed."""
    links: tuple[Link, ...]
    """Links that have the features of all other samples, the oldest first; none where these are all."""
    changed_bytes: int
    """Bytes of these features."""
    whole_bytes: int
    """Bytes of the features of all samples."""
    number: int
    _written: Written = field(repr=False)

    @property
    def is_one_too_many(self) -> bool:
        """Tell whether the chain would become too long with this link: it is folded into one."""
        linked_bytes = sum(link.size_bytes for link in self.links) + self.changed_bytes
        return bool(self.rows) and (len(self.links) == MAX_LINKS or linked_bytes > MOST_WHOLES * self.whole_bytes)

    def lost(self) -> None:
        """Note that the links cannot be read. The next copy has all."""
        self._written.last = 0, ()

    def written(self, links: tuple[Link, ...]) -> None:
        """Note that this copy lies on disk, as the last of these links. The next one has what changes from here on."""
        self._written.last = self.number, links


def folded(links: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the last feature of each sample of a chain, as `CopiedFeatures.rows` has them. Raises StorageError.

    links: the newest first. One is needed at a time.
    """
    found: dict[str, list[Tensor]] = {}
    try:
        for link in links:
            for numbers in [name for name in link if name.endswith("/numbers")]:
                features = f"{numbers.removesuffix('numbers')}features"
                is_last = _are_last(link[numbers], link[features], found.setdefault(numbers, []))
                for name in (numbers, features):
                    found.setdefault(name, []).append(link[name] if is_last.all() else link[name][is_last])
            del link  # or the memory of the oldest, which has most, would be held to the end
        return {name: _joined(parts) for name, parts in found.items()}
    except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as cause:
        raise StorageError(f"the features in a checkpoint are no chain: {cause}") from cause


def _are_last(numbers: Tensor, features: Tensor, later: list[Tensor]) -> Tensor:
    """Return a flag of each sample of a link: whether no later link has it. later: the numbers of those."""
    if len(numbers) != len(features):
        raise ValueError(f"a link has {len(numbers)} samples and {len(features)} features")
    return ~torch.isin(numbers, torch.cat(later)) if later else torch.ones(len(numbers), dtype=torch.bool)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
