"""The order in which loads leave that wait for the same link. Pure; the runtime and the simulator keep it."""

from shared.placement.derived import Crossing
from shared.placement.tiles import Cargo

_RANKS = {
    cargo: rank
    for rank, cargo in enumerate(
        (
            Cargo.ERROR_GRADIENT,
            Cargo.NORMS,
            Cargo.COEFFICIENT,
            Cargo.SCALE,
            Cargo.LABEL,
            Cargo.FEATURE,
            Cargo.WEIGHT_GRADIENT,
            Cargo.WEIGHTS,
        )
    )
}
"""First the loads that end a step of other workers, with the few numbers of clipping, and labels before their feature. Those of
shared blocks come last: they are large, and other workers can compute while they are on their way."""


def urgency(crossing: Crossing, step: int, *, merged: bool = False) -> tuple[int, int, int]:
    """Return a number, in three parts, by which the loads of a link are sent: of those that wait, the least goes first.

    Gradients of shared blocks go as they are made, the last block first. Weights go as forwards need them, the first block
    first. merged: a group takes the gradients of each block by itself, in no planned segments, so they go as the weights do.
    """
    rank = _RANKS[crossing.cargo]
    match crossing.cargo:
        case Cargo.WEIGHT_GRADIENT:
            return rank, step, crossing.index if merged else -crossing.index
        case Cargo.WEIGHTS:
            return rank, step, crossing.index
    return rank, crossing.index, step
