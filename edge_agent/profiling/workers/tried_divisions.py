"""The divisions that are trained to find what messages and blocks cost each of three workers in a step.

The device alone has all blocks; every two share blocks; every two pass features on; and all share blocks, a step ahead.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise

from edge_agent.experiment.experiment import Experiment
from shared.placement import AGENT, Placement, Rows, Tile


def tried_divisions(experiment: Experiment, names: tuple[str, ...]) -> Mapping[str, Placement]:
    """Return placements by what is tried: those that the blocks allow, whether or not the configuration permits them.

    names: the device, and two trainers. Sharing has many messages, and passing on has few of many bytes. With K = 0 workers
    wait for each other, and their messages cost them less than where K = 1 lets them go on.
    """
    alone = Tile(AGENT, 0, len(experiment.chain.blocks), Rows(0, experiment.batch_size))
    found = {f"{AGENT} has all blocks": _placement(experiment, names, (alone,), owner=AGENT)}
    for near, far in combinations(names, 2):
        for what, tiles in (
            (f"{near} and {far} share blocks", _shared(experiment, near, far)),
            (f"{near} has the blocks before {far}", _passed_on(experiment, near, far)),
        ):
            if tiles:
                found[what] = _placement(experiment, names, tiles, owner=tiles[-1].worker)
    if tiles := _shared_by_all(experiment, names):
        found["all share blocks, a step ahead"] = _placement(experiment, names, tiles, owner=AGENT, staleness=1)
    return found


def _shared(experiment: Experiment, near: str, far: str) -> tuple[Tile, ...]:
    """Return the tiles with which two workers run all blocks but the device's and the last, each on half of a batch; none where
    no block can be divided so."""
    batch, before, last = experiment.batch_size, experiment.chain.first_boundary, len(experiment.facts.blocks) - 1
    half = batch // 2
    if not _may_be_divided(experiment, range(before, last), half):
        return ()
    whole = Rows(0, batch)
    return (
        Tile(AGENT, 0, before, whole),
        Tile(near, before, last, Rows(0, half)),
        Tile(far, before, last, Rows(half, batch)),
        Tile(far, last, last + 1, whole),
    )


def _shared_by_all(experiment: Experiment, names: tuple[str, ...]) -> tuple[Tile, ...]:
    """Return the tiles with which all run all blocks but the device's, each on a third of a batch; none where no block can be
    divided so."""
    batch, before, blocks = experiment.batch_size, experiment.chain.first_boundary, len(experiment.facts.blocks)
    third = batch // len(names)
    if not _may_be_divided(experiment, range(before, blocks), third):
        return ()
    ends = (0, third, 2 * third, batch)
    return (
        Tile(AGENT, 0, before, Rows(0, batch)),
        *(Tile(name, before, blocks, Rows(*rows)) for name, rows in zip(names, pairwise(ends), strict=True)),
    )


def _may_be_divided(experiment: Experiment, blocks: range, samples: int) -> bool:
    """Tell whether there are blocks, and each may have so few samples."""
    return bool(blocks and samples) and all(experiment.facts.blocks[one].min_samples <= samples for one in blocks)


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


def _placement(
    experiment: Experiment, names: tuple[str, ...], tiles: tuple[Tile, ...], *, owner: str, staleness: int = 0
) -> Placement:
    """Return the placement of tiles. owner: the worker with the weights of what is shared."""
    owners = {
        block: owner
        for block, facts in enumerate(experiment.facts.blocks)
        if facts.changes and sum(block in tile.blocks for tile in tiles) > 1
    }
    return replace(experiment.placement, workers=names, tiles=tiles, owners=owners, codecs={}, staleness=staleness)
