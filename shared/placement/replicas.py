"""Replicas of blocks: their keepers, and the state that workers lack on disk to continue from a checkpoint. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from shared.bounds import AGENT
from shared.placement.derived import held_blocks
from shared.placement.tiles import Placement


def replica_keepers(
    placement: Placement,
    trainers: Collection[str],
    blocks: Collection[int],
    may_keep: Callable[[int, str], bool],
    beside: str | None = None,
) -> dict[tuple[str, str], list[int]]:
    """Return the blocks of which a worker keeps replicas, by the trainer that updates them and the keeper.

    trainers: those that are there. The keeper is the next one down the chain, for the last one the one before it. The agent
    keeps the blocks of a trainer that is alone, and those that this neighbour may not keep. beside: a trainer that keeps
    those of one that is alone, whether the placement names it or not.
    """
    chain = [worker for worker in placement.workers if worker in trainers]
    if len(chain) == 1 and beside is not None and beside in trainers and beside not in chain:
        chain.append(beside)
    neighbours = dict(zip(chain, [*chain[1:], *chain[-2:-1]], strict=False))
    kept: dict[tuple[str, str], list[int]] = {}
    for block in sorted(blocks):
        if (owner := placement.owner(block)) in chain:
            neighbour = neighbours.get(owner, AGENT)
            kept.setdefault((owner, neighbour if may_keep(block, neighbour) else AGENT), []).append(block)
    return kept


class OnDisk(NamedTuple):
    """The state of one checkpoint that a worker has on disk."""

    part: bool
    """True if its own part is there: of all blocks that it held then."""
    replicas: frozenset[int] = frozenset()
    """Single blocks of other parts."""


def fetches(
    before: Placement, after: Placement, on_disk: Mapping[str, OnDisk], changing: Collection[int]
) -> tuple[dict[tuple[str, str], list[int]], list[int]]:
    """List the blocks that workers lack on disk for `after`, of a checkpoint that was taken under `before`.

    Returns them by the worker that has them and the worker that lacks them, and those that no worker has to give.
    on_disk: of every worker that is there. changing: the blocks that a checkpoint has, because training changes them.
    Trainers fetch from each other if they can. Otherwise the agent brings them its blocks.
    """
    between: dict[tuple[str, str], list[int]] = {}
    nowhere = set[int]()
    for worker in after.workers:
        for block in held_blocks(after, worker):
            if block not in changing or _has(worker, block, before, after, on_disk):
                continue
            senders = [name for name in on_disk if name != worker and _gives(name, block, before, on_disk)]
            senders.sort(key=lambda name: name == AGENT)
            if senders:
                between.setdefault((senders[0], worker), []).append(block)
            else:
                nowhere.add(block)
    return between, sorted(nowhere)


def _has(worker: str, block: int, before: Placement, after: Placement, on_disk: Mapping[str, OnDisk]) -> bool:
    """Tell whether a worker has the state that it needs of a block: a worker that only shares it needs no optimizer state."""
    if _gives(worker, block, before, on_disk):
        return True
    held = worker in on_disk and on_disk[worker].part and block in held_blocks(before, worker)
    return held and after.owner(block) != worker


def _gives(worker: str, block: int, before: Placement, on_disk: Mapping[str, OnDisk]) -> bool:
    """Tell whether a worker has the whole state of a block."""
    kept = on_disk.get(worker, OnDisk(part=False))
    return block in kept.replicas or (kept.part and before.owner(block) == worker)
