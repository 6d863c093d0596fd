"""The placements that a disturbed run begins under and changes to: documents of an agent and one trainer or two."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BLOCKS, BATCH_SIZE = 4, 16

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


def draw(dice: random.Random, trainers: Sequence[str]) -> dict[str, Any]:
    """A placement of any kind that so many trainers can have, all of which are its workers, with a part or without."""
    kind = dice.choice(OF_ONE_TRAINER if len(trainers) == 1 else OF_TWO_TRAINERS)
    return document(kind, dice, trainers)


def draw_changes(
    dice: random.Random, trainers: Sequence[str], first: Mapping[str, Any], steps: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """Another placement at each of these steps. In every second one two trainers give each other all that they have."""
    changes, placement = {}, dict(first)
    for step in steps:
        gives_all = len(trainers) > 1 and dice.random() < 0.5
        placement = changes[step] = _exchanged(placement, trainers) if gives_all else draw(dice, trainers)
    return changes


def _exchanged(placement: Mapping[str, Any], trainers: Sequence[str]) -> dict[str, Any]:
    other = {"edge": "edge", **dict(zip(trainers, reversed(trainers), strict=True))}
    return {**placement, "tiles": [{**tile, "worker": other[tile["worker"]]} for tile in placement["tiles"]]}


def document(kind: str, dice: random.Random, trainers: Sequence[str]) -> dict[str, Any]:
    """A placement of this kind. Of two trainers either is the nearer one."""
    near, far = dice.sample(trainers, 2) if len(trainers) > 1 else (trainers[0], "")
    tiles = [
        {"worker": worker, "blocks": list(blocks), "samples": [0, BATCH_SIZE]}
        for worker, ranges in KINDS[kind](dice, near, far).items()
        for blocks in ranges
    ]
    return {"schema": "isthmus.placement/v1", "workers": ["edge", *trainers], "tiles": tiles}
