"""Divisions of a step among three tiers (paper 004): the blocks and samples of roles o, s and l, and the layout that they make.

The device alone runs [0, p) on the whole batch. s runs [p, m_s) on b_s samples, and l runs [p, m_l) on b_l, m_s <= m_l. o runs
all others: [p, m_s) on b_o samples, [m_s, m_l) on b_o + b_s, and the rest on the whole batch. It owns each block that two
workers have samples on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from edge_agent.planning.layout import Layout, sorted_widths
from edge_agent.planning.profile import Hop
from shared.placement import Cargo, Placement, Route, Rows, Tile


@dataclass(frozen=True, slots=True)
class Division:
    """A division. A worker without samples has no blocks, and m = 0."""

    original: str
    """Worker o."""
    short: str
    """Worker s."""
    long: str
    """Worker l."""
    before: int
    """p: blocks that the device alone runs."""
    short_blocks: int
    """m_s, counted from the first block of the model."""
    long_blocks: int
    """m_l."""
    short_samples: int
    long_samples: int

    @property
    def roles(self) -> dict[str, str]:
        """Return the worker of each role."""
        return {"o": self.original, "s": self.short, "l": self.long}

    def samples(self, batch_size: int) -> dict[str, int]:
        """Return b_o, b_s and b_l."""
        rest = batch_size - self.short_samples - self.long_samples
        return {"o": rest, "s": self.short_samples, "l": self.long_samples}


def layout_of_division(
    division: Division, blocks: int, batch_size: int, device: str, staleness: int, widths: Mapping[Hop, int]
) -> Layout:
    """Return the layout of a division. widths: bits of the features from one worker to another, if fewer than 32."""
    tiles = tuple(sorted(_tiles(division, blocks, batch_size, device), key=lambda tile: (tile.first, tile.rows.begin)))
    holders = [sum(block in tile.blocks for tile in tiles) for block in range(blocks)]
    return Layout(
        tiles,
        staleness,
        sorted_widths(tiles, {Route(*hop, Cargo.FEATURE): bits for hop, bits in widths.items()}),
        tuple((block, division.original) for block, count in enumerate(holders) if count > 1),
        "" if tiles[0].worker == device else device,
    )


def _tiles(division: Division, blocks: int, batch_size: int, device: str) -> Iterator[Tile]:
    """Yield the tiles: of the samples, those of s come first, then those of o, and then those of l."""
    before, short, samples = division.before, division.short_samples, division.samples(batch_size)
    middle = division.short_blocks if short else before
    last = division.long_blocks if division.long_samples else middle
    after_short, after_original = short, short + samples["o"]
    for worker, first, stop, begin, end in (
        (device, 0, before, 0, batch_size),
        (division.short, before, middle, 0, after_short),
        (division.original, before, middle, after_short, after_original),
        (division.original, middle, last, 0, after_original),
        (division.original, last, blocks, 0, batch_size),
        (division.long, before, last, after_original, batch_size),
    ):
        if first < stop and begin < end:
            yield Tile(worker, first, stop, Rows(begin, end))


def divisions_of(placement: Placement, names: Sequence[str]) -> Iterator[Division]:
    """Yield the divisions that a placement is, by p; none where it is of another kind. Rows may be in any order.

    names: the three workers, the device first.
    """
    for before, roles in product(range(placement.blocks + 1), permutations(names)):
        found = _division_with(placement, names[0], before, *roles)
        if found is not None:
            yield found


def _division_with(
    placement: Placement, device: str, before: int, original: str, short: str, long: str
) -> Division | None:
    batch, blocks = placement.batch_size, placement.blocks
    counts = [{tile.worker: tile.rows.count for tile in placement.holders(block)} for block in range(blocks)]
    helped = [
        {worker: next((count[worker] for count in counts[before:] if worker in count), 0) for worker in (short, long)},
        {
            worker: max((block + 1 for block in range(before, blocks) if worker in counts[block]), default=0)
            for worker in (short, long)
        },
    ]
    samples, ends = helped
    found = Division(original, short, long, before, ends[short], ends[long], samples[short], samples[long])
    if (samples[long] and ends[short] > ends[long]) or samples[short] + samples[long] > batch:
        return None
    made = [
        {tile.worker: tile.rows.count for tile in _tiles(found, blocks, batch, device) if block in tile.blocks}
        for block in range(blocks)
    ]
    owned = all(placement.owner(block) == original for block in range(blocks) if len(counts[block]) > 1)
    return found if made == counts and owned else None
