"""The range of blocks to time at a worker that one factor does not bring right: the one that could change the choice most.

A range is worth its time only where the choice of the layout depends on it: where it may be so quick that another layout is the
best, or so slow that the best one is not. Pure functions of what is known.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.engine.choosing import cheapest
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.measurements import Floats

BlockRange = tuple[int, int]
"""Blocks [first, stop)."""

DOUBT = 2.0
"""Standard deviations by which a time may differ from what is expected of it."""


class Usual(NamedTuple):
    """The steps of training at a worker now."""

    blocks: BlockRange
    """Blocks that it runs."""
    seconds: float
    """Seconds of computing for a step, by the worker's factor."""


def deciding_range(
    pool: Pool,
    now: Conditions,
    worker: int,
    ratios: Floats,
    spreads: Floats,
    known: Collection[BlockRange],
    margin: float,
) -> BlockRange | None:
    """Return the range of blocks whose time at a worker could change the choice most; None if none could by the margin.

    worker: its place. ratios, spreads: the seconds of each range there over those of the profile, as far as is known now, and
    their standard deviations; tables of shape (L + 1, L + 1). known: ranges that were timed. margin: part of a step.
    """
    if pool.runs is None:
        return None
    first, stop = pool.runs[0][worker], pool.runs[1][worker]
    is_there = stop > first
    ratio, spread = (np.where(is_there, table[first, stop], fill) for table, fill in ((ratios, 1.0), (spreads, 0.0)))
    factors = now.factors.copy()
    factors[worker] = 1.0  # the ratios are of today's device
    at = replace(now, factors=factors)
    usual, quick, slow = (
        pool.loads.seconds(at, {worker: np.maximum(ratio + doubt * spread, 0.0)}) for doubt in (0.0, -DOUBT, DOUBT)
    )
    allowed = pool.allowed & np.isfinite(usual)
    if not allowed.any():
        return None
    best = cheapest(usual, allowed)
    gains: dict[BlockRange, float] = {}
    for run in set(zip(first[allowed & is_there].tolist(), stop[allowed & is_there].tolist(), strict=True)):
        rows = allowed & is_there & (first == run[0]) & (stop == run[1])
        if rows[best]:
            others = np.where(allowed & ~rows, usual, np.inf).min()
            gains[run] = float(slow[rows].min() - others)
        else:
            gains[run] = float(usual[best] - quick[rows].min())
    telling = [run for run in sorted(gains) if run not in known and gains[run] > margin * usual[best]]
    return max(telling, key=lambda run: gains[run], default=None)
