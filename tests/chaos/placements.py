"""The placements that a disturbed run begins under and changes to: documents of an agent and one to three trainers.

A trainer may have no blocks under a placement: of two or three there often is one that has none, a spare. In every second
placement such a trainer is not named either: it is a candidate, which has to be admitted before it gets any.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BLOCKS, BATCH_SIZE = 4, 16
DIVIDED_BLOCKS, DIVIDED_AT = 2, 6
"""Number of blocks that workers share in a run that divides batches, and the sample at which it divides them."""
TIERS_AT = (4, 10)
"""The samples at which three tiers divide a batch."""

HANDOVER_SHARE = 0.4
"""Share of the changes that are handovers, where there are several trainers."""

Document = Mapping[str, Any]

Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""By worker, the blocks that it runs."""


def _cut(dice: random.Random, near: str, _far: str) -> Ranges:
    cut = dice.randint(1, BLOCKS - 1)
    return {"edge": [(0, cut)], near: [(cut, BLOCKS)]}


def _labels_stay(dice: random.Random, near: str, _far: str) -> Ranges:
    begin, stop = sorted(dice.sample(range(1, BLOCKS), 2))
    return {"edge": [(0, begin), (stop, BLOCKS)], near: [(begin, stop)]}


def _inverted(dice: random.Random, near: str, _far: str) -> Ranges:
    cut = dice.randint(1, BLOCKS - 1)
    return {near: [(0, cut)], "edge": [(cut, BLOCKS)]}


def _alone(_dice: random.Random, _near: str, _far: str) -> Ranges:
    return {"edge": [(0, BLOCKS)]}


def _chain(dice: random.Random, near: str, far: str) -> Ranges:
    begin, stop = sorted(dice.sample(range(1, BLOCKS), 2))
    return {"edge": [(0, begin)], near: [(begin, stop)], far: [(stop, BLOCKS)]}


def _there_and_back(_dice: random.Random, near: str, far: str) -> Ranges:
    return {"edge": [(0, 1)], near: [(1, 2), (3, BLOCKS)], far: [(2, 3)]}


KINDS: Mapping[str, Callable[[random.Random, str, str], Ranges]] = {
    "cut": _cut,
    "labels stay": _labels_stay,
    "inverted": _inverted,
    "alone": _alone,
    "chain of three": _chain,
    "there and back": _there_and_back,
}
OF_ONE_TRAINER = ("cut", "cut", "labels stay", "inverted", "alone")
OF_TWO_TRAINERS = (*OF_ONE_TRAINER, "chain of three", "chain of three", "there and back")


def draw(dice: random.Random, trainers: Sequence[str], shared: "Shared | None") -> Document:
    """A placement of any kind that so many trainers can have, which may not name those without a part.

    shared: how workers share the first blocks, each with its samples; always the same samples, as they decide the bits.
    """
    if shared is not None:
        return _named(dice, shared(dice, trainers))
    kind = dice.choice(OF_ONE_TRAINER if len(trainers) == 1 else OF_TWO_TRAINERS)
    return _named(dice, document(kind, dice, trainers))


def draw_changes(
    dice: random.Random, trainers: Sequence[str], first: Document, steps: Sequence[int], shared: "Shared | None"
) -> dict[int, Document | str]:
    """Another placement at each of these steps, or a trainer that is to have all that another one has.

    In every second placement two trainers give each other all that they have. Of three tiers none is given all: another would
    lack its samples.
    """
    changes, placement = dict[int, Document | str](), first
    for step in steps:
        if shared is not three_tiers and len(trainers) > 1 and dice.random() < HANDOVER_SHARE:
            changes[step] = dice.choice(trainers)
            continue
        gives_all = len(trainers) > 1 and dice.random() < 0.5
        placement = _exchanged(placement, trainers) if gives_all else draw(dice, trainers, shared)
        changes[step] = placement
    return changes


def document(kind: str, dice: random.Random, trainers: Sequence[str]) -> Document:
    """A placement of this kind. Of two trainers either is the nearer one."""
    near, far = dice.sample(trainers, 2) if len(trainers) > 1 else (trainers[0], "")
    ranges = KINDS[kind](dice, near, far)
    return _document(trainers, [_tile(worker, *blocks) for worker, each in ranges.items() for blocks in each], {})


def with_a_stateless(owner: str, stateless: str) -> Document:
    """A trainer shares the first blocks with the device, and another one updates them and runs the rest."""
    tiles = [_tile("edge", 0, DIVIDED_BLOCKS, 0, DIVIDED_AT), _tile(stateless, 0, DIVIDED_BLOCKS, DIVIDED_AT)]
    tiles.append(_tile(owner, DIVIDED_BLOCKS, BLOCKS))
    return _document((owner, stateless), tiles, {str(block): owner for block in range(DIVIDED_BLOCKS)})


Shared = Callable[[random.Random, Sequence[str]], Document]
"""A way to share the first blocks."""


def two_parts(dice: random.Random, trainers: Sequence[str]) -> Document:
    """Two workers share the first blocks, any worker updates each of these, and any two run the blocks above."""
    workers = ("edge", *trainers)
    first, second = dice.sample(workers, 2)
    tiles = [_tile(first, 0, DIVIDED_BLOCKS, 0, DIVIDED_AT), _tile(second, 0, DIVIDED_BLOCKS, DIVIDED_AT)]
    tiles += [_tile(dice.choice(workers), block, block + 1) for block in range(DIVIDED_BLOCKS, BLOCKS)]
    return _document(trainers, tiles, {str(block): dice.choice(workers) for block in range(DIVIDED_BLOCKS)})


def three_tiers(dice: random.Random, trainers: Sequence[str]) -> Document:
    """The device and two trainers in any roles: all share the first block and two of them the second, and the one that updates
    both runs the rest for all."""
    original, short, long = dice.sample(("edge", *trainers), 3)
    first, second = TIERS_AT
    tiles = [
        _tile(short, 0, 1, 0, first),
        _tile(original, 0, 1, first, second),
        _tile(long, 0, 2, second),
        _tile(original, 1, 2, 0, second),
        _tile(original, 2, BLOCKS),
    ]
    return _document(trainers, tiles, dict.fromkeys(("0", "1"), original))


def _named(dice: random.Random, placement: Document) -> Document:
    """Return the placement without the names of trainers that have no part, in every second case."""
    if dice.random() < 0.5:
        return placement
    having = {"edge", *placement["owners"].values(), *(tile["worker"] for tile in placement["tiles"])}
    return {**placement, "workers": [worker for worker in placement["workers"] if worker in having]}


def _tile(worker: str, first: int, stop: int, begin: int = 0, end: int = BATCH_SIZE) -> Document:
    return {"worker": worker, "blocks": [first, stop], "samples": [begin, end]}


def _document(trainers: Sequence[str], tiles: Sequence[Document], owners: Mapping[str, str]) -> Document:
    return {"schema": "isthmus.placement/v1", "workers": ["edge", *trainers], "tiles": tiles, "owners": owners}


def _exchanged(placement: Document, trainers: Sequence[str]) -> Document:
    other = {"edge": "edge", **dict(zip(trainers, reversed(trainers), strict=True))}
    tiles = [{**tile, "worker": other[tile["worker"]]} for tile in placement["tiles"]]
    return _document(trainers, tiles, {block: other[owner] for block, owner in placement["owners"].items()})
