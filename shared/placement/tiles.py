"""A placement: which worker runs which blocks on which samples of a batch, as data.

A step computes L blocks (rows of the plan) on the B samples of a batch (columns). A tile is a rectangle of that grid on
one worker. This file holds the description alone. `validity` judges it; `derived` and `programs` compute its
consequences.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

GROUP = "the group"
"""Stands for the owner of weights in a group of devices, which is no worker of any placement: no worker can have this name."""


class Cargo(StrEnum):
    """The loads that one worker sends another, by their role in a step."""

    FEATURE = "feature"
    """Rows of the input of a block, forward. Feature 0 is the raw input, feature L the output of the model."""
    ERROR_GRADIENT = "error_gradient"
    """Rows of the gradient at the input of a block, backward."""
    LABEL = "label"
    """Rows of the targets."""
    WEIGHT_GRADIENT = "weight_gradient"
    """One part of the gradient of a shared block, to its owner."""
    WEIGHTS = "weights"
    """A block's weights after an update, from its owner."""
    NORMS = "norms"
    """Norms of the gradients of blocks, to the owner that collects those of all; see `norms`."""
    COEFFICIENT = "coefficient"
    """The number by which all gradients are scaled before an update, from that owner."""
    SCALE = "scale"
    """The number by which the loss of a step is scaled, so that small gradients do not vanish in float16; see `norms`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples [begin, end) of a whole batch of B."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        """Number of these samples."""
        return self.end - self.begin

    def overlap(self, other: "Rows") -> "Rows | None":
        """The samples of both; None where there are none."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return Rows(begin, end) if begin < end else None

    def scaled(self, samples: int, batch_size: int) -> "Rows":
        """The same share of a shorter batch: each end s becomes s·n // B."""
        if samples == batch_size:
            return self
        return Rows(self.begin * samples // batch_size, self.end * samples // batch_size)

    def __str__(self) -> str:
        return f"[{self.begin}, {self.end})"


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks [first, stop) on the samples `rows` of a batch, run by `worker`."""

    worker: str
    first: int
    stop: int
    rows: Rows

    @property
    def blocks(self) -> range:
        """The blocks of this tile."""
        return range(self.first, self.stop)


@dataclass(frozen=True, slots=True)
class Source:
    """The worker that holds the raw samples `rows` of every batch, and their labels."""

    worker: str
    rows: Rows


@dataclass(frozen=True, slots=True)
class Route:
    """One direction between two workers, for one kind of cargo."""

    sender: str
    receiver: str
    cargo: Cargo


Segment = tuple[int, int]
"""Blocks [first, stop)."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The blocks whose gradients, and whose new weights, travel together on a link."""

    push: tuple[Segment, ...]
    """Gradients to the owners: the segments in the order in which they go, the last blocks first."""
    pull: tuple[Segment, ...]
    """Weights from the owners, the first blocks first."""
    barrier: bool
    """True if no weights of a step go before all blocks of their owner are updated."""


@dataclass(frozen=True)
class Placement:
    """The division of a step among workers, from some step on. Frozen: another placement has another version."""

    version: int
    blocks: int
    """L: how many blocks the model has."""
    batch_size: int
    """B: the samples of a whole batch; the last batch of an epoch may be shorter and divides in the same proportion."""
    workers: tuple[str, ...]
    """All workers, nearest to the edge first; of two that are linked, the earlier one dials."""
    tiles: tuple[Tile, ...]
    sources: tuple[Source, ...]
    owners: Mapping[int, str] = field(default_factory=dict)
    """Workers that sum gradient parts, update a block and keep its optimizer. Left out, the block's holder, where there
    is one only."""
    labels: frozenset[str] | None = None
    """Workers that compute the loss, where they are prescribed: they must be the workers that hold the last block."""
    staleness: int = 0
    """K: step t computes on weights of version t - K or newer."""
    codecs: Mapping[Route, str] = field(default_factory=dict)
    """Codec of each route. On other routes tensors travel unchanged."""
    exchange: Exchange | None = None
    """Exchange of shared blocks. Left out, each block travels by itself, as soon as it can."""

    def tiles_of(self, worker: str) -> tuple[Tile, ...]:
        """The tiles of a worker, first blocks first."""
        return tuple(sorted((tile for tile in self.tiles if tile.worker == worker), key=lambda tile: tile.first))

    @property
    def parts(self) -> int:
        """Number of parts of the placement: the blocks of each tile. The size of everything derived from it grows with
        this number."""
        return sum(max(min(tile.stop, self.blocks) - max(tile.first, 0), 0) for tile in self.tiles)

    def holders(self, block: int) -> tuple[Tile, ...]:
        """The tiles that hold a block, in the order of their samples."""
        return self._holders.get(block, ())

    @cached_property
    def _holders(self) -> dict[int, tuple[Tile, ...]]:
        """By block. Worked out once, because everything that follows from a placement asks block by block."""
        by_block: dict[int, list[Tile]] = defaultdict(list)
        for tile in sorted(self.tiles, key=lambda tile: tile.rows.begin):
            for block in range(max(tile.first, 0), min(tile.stop, self.blocks)):
                by_block[block].append(tile)
        return {block: tuple(tiles) for block, tiles in by_block.items()}

    @cached_property
    def held(self) -> Mapping[str, tuple[int, ...]]:
        """By worker, the blocks whose weights it holds, because it runs them or owns them. The placement must be valid."""
        by_worker: dict[str, list[int]] = defaultdict(list)
        for block in range(self.blocks):
            for worker in dict.fromkeys((self.owner(block), *(tile.worker for tile in self.holders(block)))):
                by_worker[worker].append(block)
        return {worker: tuple(blocks) for worker, blocks in by_worker.items()}

    def owner(self, block: int) -> str:
        """Name the worker that updates a block. The placement must be valid."""
        return self.owners.get(block) or self.holders(block)[0].worker

    @cached_property
    def shared_blocks(self) -> frozenset[int]:
        """The blocks that another worker than their owner holds, too: their gradients are pushed and their weights
        pulled. The placement must be valid."""
        return frozenset(
            block
            for block in range(self.blocks)
            if any(tile.worker != self.owner(block) for tile in self.holders(block))
        )


def two_workers(edge: str, trainer: str, cut: int, blocks: int, batch_size: int, *, staleness: int = 0) -> Placement:
    """The short form: blocks [0, cut) on the edge and [cut, L) on the trainer, on all samples. cut = L is edge-only."""
    whole = Rows(0, batch_size)
    stacked = [Tile(edge, 0, cut, whole), Tile(trainer, cut, blocks, whole)]
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=batch_size,
        workers=(edge, trainer),
        tiles=tuple(tile for tile in stacked if tile.blocks),
        sources=(Source(edge, whole),),
        staleness=staleness,
    )
