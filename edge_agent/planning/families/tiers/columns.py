"""Many divisions among three tiers at once, as columns."""

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from edge_agent.planning.families.tiers.divisions import Division, layout_of_division
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS, Ints

HOPS = tuple(permutations(range(3), 2))
"""Directions between the three workers."""


class Divisions(NamedTuple):
    """n divisions as columns, shape (n,). Workers are places in the profile. A role without samples has m = p here."""

    original: Ints
    short: Ints
    long: Ints
    before: Ints
    short_blocks: Ints
    long_blocks: Ints
    short_samples: Ints
    long_samples: Ints
    widths: Ints
    """Bits of the features from one worker to another, shape (n, 3, 3)."""

    @property
    def rows(self) -> int:
        """Return n."""
        return len(self.original)

    def take(self, rows: Ints | slice) -> "Divisions":
        """Return the rows that indices pick."""
        return Divisions(*(column[rows] for column in self))

    def division(self, row: int, names: tuple[str, ...]) -> Division:
        """Return one of them."""
        short, long = int(self.short_samples[row]), int(self.long_samples[row])
        return Division(
            names[int(self.original[row])],
            names[int(self.short[row])],
            names[int(self.long[row])],
            int(self.before[row]),
            int(self.short_blocks[row]) if short else 0,
            int(self.long_blocks[row]) if long else 0,
            short,
            long,
        )


def columns_of(division: Division, names: tuple[str, ...]) -> Divisions:
    """Return a division as the only row, at 32 bits."""
    before = division.before
    columns = (
        *(names.index(worker) for worker in division.roles.values()),
        before,
        division.short_blocks if division.short_samples else before,
        division.long_blocks if division.long_samples else division.short_blocks if division.short_samples else before,
        division.short_samples,
        division.long_samples,
    )
    return Divisions._make((*(np.array([column]) for column in columns), np.full((1, 3, 3), FLOAT32_BITS)))


def layout_of(one: Divisions, names: Sequence[str], blocks: int, batch_size: int, staleness: int) -> Layout:
    """Return the layout of a single row."""
    widths = {
        (names[near], names[far]): int(one.widths[0, near, far])
        for near in range(3)
        for far in range(3)
        if one.widths[0, near, far] < FLOAT32_BITS
    }
    return layout_of_division(one.division(0, tuple(names)), blocks, batch_size, names[0], staleness, widths)


def joined(each: list[Divisions]) -> Divisions:
    """Join the rows of all, in this order."""
    return Divisions(*(np.concatenate(columns) for columns in zip(*each, strict=True)))


def canonical(of: Divisions) -> Divisions:
    """Return the same with s as l where l is absent. Both are the same placement."""
    alone = (of.long_samples == 0) & (of.short_samples > 0)

    def swapped(one: Ints, other: Ints) -> Ints:
        return np.where(alone, other, one)

    return Divisions(
        of.original,
        swapped(of.short, of.long),
        swapped(of.long, of.short),
        of.before,
        swapped(of.short_blocks, of.before),
        swapped(of.long_blocks, of.short_blocks),
        swapped(of.short_samples, of.long_samples),
        swapped(of.long_samples, of.short_samples),
        of.widths,
    )


def kinds_of(of: Divisions, batch_size: int) -> Ints:
    """Return a number for each, the same for the same workers in the same roles, with raw samples sent or not, and b_o of 0 or
    not."""
    present = [
        np.where(count > 0, worker + 1, 0)
        for worker, count in ((of.short, of.short_samples), (of.long, of.long_samples))
    ]
    kinds: Ints = of.original * 16 + present[0] * 4 + present[1]
    has_share = of.short_samples + of.long_samples < batch_size
    return 4 * kinds + 2 * (of.before > 0) + has_share


def structures(of: Divisions) -> Ints:
    """Return a number for each, that is the same for those that differ in shares alone."""
    parts = [of.original, of.short, of.long, of.before, of.short_blocks, of.long_blocks, of.short_samples > 0]
    parts += [of.long_samples > 0, *(of.widths[:, near, far] for near, far in HOPS)]
    _, numbers = np.unique(np.stack(parts, axis=1).astype(np.int16), axis=0, return_inverse=True)
    return numbers.reshape(-1)


def keys(of: Divisions) -> list[bytes]:
    """Return something by which equal rows are known."""
    table = np.concatenate(
        [
            np.stack([of.original, of.short, of.long, of.before, of.short_blocks, of.long_blocks], axis=1),
            np.stack([of.short_samples, of.long_samples], axis=1),
            of.widths.reshape(of.rows, -1),
        ],
        axis=1,
    ).astype(np.int16)
    return [row.tobytes() for row in table]
