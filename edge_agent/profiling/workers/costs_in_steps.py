"""The costs of each worker in real steps: a message's, and its blocks' beside what they take alone.

Every message wakes a process, and is packed, checked and read. Of a worker with a share of a core all of that takes the time of
its blocks, and the longer, the slower the worker is. So several divisions are trained, and from what their steps take the costs
follow: the device alone has all blocks; every two share blocks; every two pass features on; and all share blocks, a step ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Profile, conditions_of, simulated_seconds, with_batch_size
from edge_agent.planning.measurements import Floats, Linear
from shared.placement import AGENT, Placement, Rows, Tile

_ROUNDS = 4
"""Times that the simulator's slopes are taken, at most."""
_SLOPE_PART = 0.002
"""Part of a step by which a cost is changed to see how much longer a step takes."""
_FRACTIONS = (1.0, 0.5, 0.25)
"""Parts of the way to other costs that are tried, because slopes hold only near where they were taken."""
_BETTER = 0.9
"""Part of an error that has to be left for the search to go on."""
_NOISE = 0.1
"""Part of a step by which a measured one may be wrong. It is as unlikely that a worker has twice the cost of a message that its
blocks suggest."""
_BLOCKS_NOISE = 0.3
"""Part of a step by which a measured one may be wrong. It is as unlikely that a worker's blocks take twice as long as alone."""


class InSteps(NamedTuple):
    """Costs of a worker in steps."""

    message: Linear
    """Seconds of each message that it sends, and of each that it receives, by bytes."""
    factor: float
    """Factor of the seconds that its blocks take alone."""


def costs_in_steps(profile: Profile, steps: Sequence[tuple[Placement, float]]) -> dict[str, InSteps]:
    """Return the costs of each worker.

    profile: of blocks that were measured alone, and of messages that cost nothing. steps: placements, and the measured seconds
    of a step of each. The costs, none below 0, are those with which the simulator errs least, as relative squares: first one
    of a message for all workers, greater as their blocks take longer; then those of each that are not far from it, nor from
    its blocks alone, without need.
    """
    costs, names = profile.by_samples, profile.names
    assert costs is not None
    workers = len(names)
    measured = np.array([seconds for _, seconds in steps])
    sizes = [*costs.weight_bytes, *(size * profile.batch_size for size in costs.feature_bytes)]
    # Each number that is looked for is seconds: of a message of this size, or of all blocks.
    unit_bytes = max(1.0, sum(sizes) / len(sizes))
    alone = np.array([_block_seconds(profile, name) for name in names])
    slowness = np.tile(alone / alone.mean(), 2)

    def named(each: Floats) -> dict[str, InSteps]:
        fixed, by_size, blocks = each.reshape(3, workers)
        return {
            name: InSteps(
                Linear(float(fixed[place]), float(by_size[place]) / unit_bytes), float(blocks[place] / alone[place])
            )
            for place, name in enumerate(names)
        }

    def error(each: Floats) -> Floats:
        changed = _changed(profile, named(each))
        at = conditions_of(changed)
        parts: Floats = np.array([simulated_seconds(changed, placement, at) for placement, _ in steps]) / measured
        return parts - 1.0

    def with_messages(both: Floats) -> Floats:
        """Return all numbers, for two of a message at a worker of mean slowness."""
        return np.concatenate([np.repeat(both, workers) * slowness, alone])

    def error_and_distance(each: Floats) -> Floats:
        of_messages, of_blocks = each[: 2 * workers], each[2 * workers :]
        distance = (of_messages - alike[: 2 * workers]) / slowness / expected
        return np.concatenate([error(each), _NOISE * distance, _BLOCKS_NOISE * (of_blocks / alone - 1.0)])

    if not steps:
        return named(with_messages(np.zeros(2)))
    change = _SLOPE_PART * float(measured.min())
    both = _fitted(lambda both: error(with_messages(both)), np.zeros(2), change)
    alike, expected = with_messages(both), max(change, float(both.sum()))
    return named(_fitted(error_and_distance, alike, change))


def with_costs(profile: Profile, costs: Mapping[str, InSteps]) -> Profile:
    """Return a profile with the costs of each worker in steps."""
    return with_batch_size(_changed(profile, costs), profile.batch_size)


def _changed(profile: Profile, costs: Mapping[str, InSteps]) -> Profile:
    """Return the same without the seconds of whole batches, which are as they were."""
    alone = profile.by_samples
    assert alone is not None
    blocks = alone.slowed({name: cost.factor for name, cost in costs.items()})
    messages = {name: cost.message for name, cost in costs.items()}
    return replace(profile, by_samples=replace(blocks, messages=messages))


def _block_seconds(profile: Profile, worker: str) -> float:
    """Return the seconds that a worker takes for a batch in all blocks."""
    costs, samples = profile.by_samples, profile.batch_size
    assert costs is not None
    return sum(block.forward.at(samples) + block.backward.at(samples) + block.update for block in costs.blocks[worker])


def _fitted(error: Callable[[Floats], Floats], begin: Floats, change: float) -> Floats:
    """Return the numbers of 0 or more with the least squares of these errors, as Gauss and Newton do. change: of a number,
    to see what an error does."""
    found, now = begin, error(begin)
    for _ in range(_ROUNDS):
        slopes = np.stack([(error(found + change * one) - now) / change for one in np.eye(len(found))], axis=1)
        wanted, before = _least_squares(slopes, slopes @ found - now), now @ now
        for fraction in _FRACTIONS:
            tried = found + fraction * (wanted - found)
            then = error(tried)
            if then @ then < now @ now:
                found, now = tried, then
                break
        if now @ now > _BETTER * before:
            break
    return found


def _least_squares(slopes: Floats, wanted: Floats) -> Floats:
    """Return the x of 0 or more of the least squares of slopes @ x - wanted, by trying which of a few are 0."""
    best, least = np.zeros(slopes.shape[1]), float(wanted @ wanted)
    for chosen in product((False, True), repeat=slopes.shape[1]):
        some = np.flatnonzero(chosen)
        x = np.linalg.lstsq(slopes[:, some], wanted, rcond=1e-6)[0]
        missed = slopes[:, some] @ x - wanted
        if (x >= 0.0).all() and missed @ missed < least * (1.0 - 1e-9):
            best, least = np.zeros(slopes.shape[1]), float(missed @ missed)
            best[some] = x
    return best


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
