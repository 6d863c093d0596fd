"""The divisions that are trained to find what a message costs on each of three workers: every two of them share blocks, and
every two of them pass features on."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from edge_agent.experiment.building import Experiment
from shared.placement import AGENT, Placement, Rows, Tile


def tried_divisions(experiment: Experiment, names: tuple[str, ...]) -> Mapping[str, Placement]:
    """Return placements by what is tried: those that the blocks allow, whether or not the configuration permits them.

    names: the device, and two trainers. Sharing has many messages, and passing on has few of many bytes.
    """
    found = {}
    for near, far in combinations(names, 2):
        for what, tiles in (
            (f"{near} and {far} share blocks", _shared(experiment, near, far)),
            (f"{near} has the blocks before {far}", _passed_on(experiment, near, far)),
        ):
            if tiles:
                found[what] = _placement(experiment, names, tiles)
    return found


def _shared(experiment: Experiment, near: str, far: str) -> tuple[Tile, ...]:
    """Return the tiles with which two workers run all blocks but the device's and the last, each on half of a batch; none where
    no block can be divided so."""
    facts, batch, before = experiment.facts.blocks, experiment.batch_size, experiment.chain.first_boundary
    last, half = len(facts) - 1, experiment.batch_size // 2
    shared = range(before, last)
    if not shared or any(facts[block].min_samples > half for block in shared) or not half:
        return ()
    whole = Rows(0, batch)
    return (
        Tile(AGENT, 0, before, whole),
        Tile(near, before, last, Rows(0, half)),
        Tile(far, before, last, Rows(half, batch)),
        Tile(far, last, last + 1, whole),
    )


def _passed_on(experiment: Experiment, near: str, far: str) -> tuple[Tile, ...]:
    """Return the tiles with which one worker runs the next blocks after the other; none where there are too few blocks."""
    blocks, before, whole = (
        len(experiment.chain.blocks),
        experiment.chain.first_boundary,
        Rows(0, experiment.batch_size),
    )
    if near == AGENT:
        return (Tile(AGENT, 0, before, whole), Tile(far, before, blocks, whole)) if before < blocks else ()
    middle = (before + blocks) // 2
    if middle == before:
        return ()
    return Tile(AGENT, 0, before, whole), Tile(near, before, middle, whole), Tile(far, middle, blocks, whole)


def _placement(experiment: Experiment, names: tuple[str, ...], tiles: tuple[Tile, ...]) -> Placement:
    """Return the placement of tiles. The last worker has the weights of what is shared."""
    owners = {
        block: tiles[-1].worker
        for block, facts in enumerate(experiment.facts.blocks)
        if facts.changes and sum(block in tile.blocks for tile in tiles) > 1
    }
    return replace(experiment.placement, workers=names, tiles=tiles, owners=owners, codecs={}, staleness=0)
