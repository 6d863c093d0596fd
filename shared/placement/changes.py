"""Moves of blocks between workers when another placement comes into force, between two steps. Pure."""

from typing import NamedTuple

from shared.placement.derived import held_blocks
from shared.placement.tiles import Placement


class BlockMove(NamedTuple):
    """The state of a block that goes from one worker to another."""

    block: int
    sender: str
    """Owner until now: no other worker has the state of its optimizer."""
    receiver: str
    whole: bool
    """True if the state of its optimizer moves along: the receiver owns the block from now on."""


def moves(before: Placement, after: Placement) -> tuple[BlockMove, ...]:
    """All that workers lack for `after`, by block; a holder of a shared block has its weights of now already."""
    found = []
    for worker in after.workers:
        had = set(held_blocks(before, worker)) if worker in before.workers else set[int]()
        for block in held_blocks(after, worker):
            sender, owns = before.owner(block), after.owner(block) == worker
            if sender != worker and (owns or block not in had):
                found.append(BlockMove(block, sender, worker, whole=owns))
    return tuple(sorted(found))
