"""Chains: placements of which each worker runs the next blocks of the model, on all samples."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from shared.errors import ConfigError
from shared.placement.tiles import Placement, Rows, Tile


def chain_workers(placement: Placement) -> tuple[str, ...] | None:
    """The workers with blocks, in their order; None where the placement is no chain."""
    stacked = sorted(placement.tiles, key=lambda tile: tile.first)
    workers = tuple(tile.worker for tile in stacked)
    in_order = tuple(name for name in placement.workers if name in workers)
    is_stacked = set(stacked) == set(_stacked(placement, workers, [tile.first for tile in stacked[1:]]))
    return workers if workers == in_order and is_stacked and not placement.owners else None


def cuts_of(placement: Placement) -> tuple[int, ...] | None:
    """The blocks before each worker of a chain but the first, rising; None where the placement is no chain."""
    if chain_workers(placement) is None:
        return None
    return tuple(sorted(tile.first for tile in placement.tiles)[1:])


def at_cuts(placement: Placement, cuts: Sequence[int]) -> Placement:
    """The same chain with other cuts. Raises ConfigError where it is no chain, or cannot be cut so.

    cuts: one for each worker but the first, of those with blocks or of all; those that are L leave their workers without any.
    """
    workers = chain_workers(placement)
    if workers is None:
        raise ConfigError("the placement is not of workers that each run the next blocks, so there are no cuts to move")
    if len(cuts) != len(workers) - 1:
        workers = placement.workers
    used = tuple(cut for cut in cuts if cut != placement.blocks)
    ends = (0, *used, placement.blocks)
    is_rising = used == tuple(cuts[: len(used)]) and all(first < stop for first, stop in pairwise(ends))
    if len(cuts) != len(workers) - 1 or not is_rising:
        raise ConfigError(
            f"the cuts are {', '.join(map(str, cuts))}; with {placement.blocks} blocks on {len(workers)} workers there must be "
            f"{len(workers) - 1}, rising, from 1 to {placement.blocks}"
        )
    return replace(placement, tiles=_stacked(placement, workers[: len(used) + 1], used))


def _stacked(placement: Placement, workers: Sequence[str], cuts: Sequence[int]) -> tuple[Tile, ...]:
    runs = pairwise((0, *cuts, placement.blocks))
    whole = Rows(0, placement.batch_size)
    return tuple(Tile(worker, *run, whole) for worker, run in zip(workers, runs, strict=True))
