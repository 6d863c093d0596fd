"""Placements in which one worker does another's work: beside its own, or in its place. Pure."""

from dataclasses import replace

from shared.errors import ConfigError
from shared.placement.tiles import Placement, Route, Rows, Tile


def reassign_worker(placement: Placement, worker: str, successor: str) -> Placement:
    """The placement in which `successor` has the tiles of `worker` beside its own, and owns its blocks; the workers stay.

    Where both have the same block, their samples become one stretch. Raises ConfigError where they cannot.
    """
    return replace(
        placement,
        version=placement.version + 1,
        tiles=(
            *(tile for tile in placement.tiles if tile.worker not in (worker, successor)),
            *_joined(placement, worker, successor),
        ),
        owners={block: successor if owner == worker else owner for block, owner in placement.owners.items()},
        labels=placement.labels and frozenset(successor if name == worker else name for name in placement.labels),
        codecs=_renamed(placement, worker, successor),
    )


def hand_over(placement: Placement, worker: str, successor: str) -> Placement:
    """The placement in which `successor`, which has no part yet, has all that `worker` has, and its place among the workers.

    worker: one without samples of its own. If `successor` is named already, the two change places. Every number of a step
    stays as it is.
    """
    names = {worker: successor, successor: worker}
    named = tuple(names.get(name, name) for name in placement.workers)
    return replace(
        placement,
        version=placement.version + 1,
        workers=named,
        tiles=tuple(replace(tile, worker=names.get(tile.worker, tile.worker)) for tile in placement.tiles),
        owners={block: names.get(owner, owner) for block, owner in placement.owners.items()},
        labels=placement.labels and frozenset(names.get(name, name) for name in placement.labels),
        codecs=_renamed(placement, worker, successor),
    )


def with_worker(placement: Placement, worker: str) -> Placement:
    """The placement as a worker has to know it that has no part and may not be named: named last then."""
    if worker in placement.workers:
        return placement
    return replace(placement, workers=(*placement.workers, worker))


def _joined(placement: Placement, worker: str, successor: str) -> list[Tile]:
    """Return the tiles of both workers for the successor, as few as possible."""
    rows: dict[int, Rows] = {}
    for tile in (*placement.tiles_of(successor), *placement.tiles_of(worker)):
        for block in tile.blocks:
            rows[block] = _stretch(block, rows[block], tile.rows) if block in rows else tile.rows
    tiles: list[Tile] = []
    for block in sorted(rows):
        if tiles and (tiles[-1].stop, tiles[-1].rows) == (block, rows[block]):
            tiles[-1] = replace(tiles[-1], stop=block + 1)
        else:
            tiles.append(Tile(successor, block, block + 1, rows[block]))
    return tiles


def _stretch(block: int, some: Rows, others: Rows) -> Rows:
    first, second = sorted((some, others), key=lambda rows: rows.begin)
    if first.end != second.begin:
        raise ConfigError(
            f"samples {first} and {second} of block {block} are no one stretch, so one worker cannot have both"
        )
    return Rows(first.begin, second.end)


def _renamed(placement: Placement, worker: str, successor: str) -> dict[Route, str]:
    """The codecs, those of the worker's routes now on the successor's, unless that has one of its own there."""
    codecs: dict[Route, str] = {}
    for route, codec in sorted(placement.codecs.items(), key=lambda item: worker in (item[0].sender, item[0].receiver)):
        sender, receiver = (successor if name == worker else name for name in (route.sender, route.receiver))
        if sender != receiver:
            codecs.setdefault(Route(sender, receiver, route.cargo), codec)
    return codecs
