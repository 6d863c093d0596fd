"""The best partition of a chain, equal to trying every one.

Paper 001 minimises the slowest part alone (its A(l, n)). With K a step has two criteria, T_max and T_sum. So dynamic
programming finds the least T_sum in which no part takes longer than a limit. That sum falls as the limit rises, so the
best limit is found by bisection among the seconds that parts can have.
"""

import functools
import math
import sys
from itertools import pairwise

import numpy as np

from shared.errors import PlanError
from shared.planning.chain.costs import ChainCosts, Partition
from shared.planning.measurements import Floats
from shared.planning.space import check_staleness

ROUNDING = 1e-12
"""Part of a step's seconds that is rounding of sums: two partitions so close are equal."""


def best_partition(costs: ChainCosts, staleness: int | None) -> Partition:
    """Return the partition of the fewest seconds a step; of equals, that of the smallest cuts, and then of the most bits.

    staleness: K; None lets T_max alone count. PlanError if no partition is permitted and measured.
    """
    check_staleness(staleness)
    seconds = _least_seconds(costs, staleness)
    if not seconds < math.inf:
        raise PlanError(
            f"no partition of the {costs.blocks} blocks into {len(costs.stages)} stages can be chosen with "
            f"{', '.join(map(str, costs.widths))} bits: each has something that was not measured or is below min_bits; "
            "measure what the chain has as null, or allow more bit widths"
        )
    return _first_within(costs, seconds * (1.0 + ROUNDING), staleness)


def improves_on(costs: ChainCosts, staleness: int | None, seconds: float) -> bool:
    """Tell whether any partition takes less than so many seconds a step."""
    less = seconds * (1.0 - ROUNDING)
    return _share(_Limited(costs, less).least_total, staleness) <= less


def _least_seconds(costs: ChainCosts, staleness: int | None) -> float:
    """Return the seconds a step of the best partition; infinite if there is none."""
    limits = _limits(costs)
    below, reached = 0, len(limits)
    before = after = math.inf
    # The share of the sum only falls and the limit only rises. The best is on either side of the place where they meet.
    while below < reached:
        middle = (below + reached) // 2
        share = _share(_Limited(costs, float(limits[middle])).least_total, staleness)
        if share <= limits[middle]:
            reached, after = middle, float(limits[middle])
        else:
            below, before = middle + 1, share
    return min(before, after)


def _limits(costs: ChainCosts) -> Floats:
    """Return all seconds that a stage or a direction of a link can take, rising."""
    coded = [costs.rows(stage)[:, :, np.newaxis] + costs.encode for stage in range(costs.links)]
    parts = [*coded, costs.rows(costs.links)[:, -1], costs.uplink, costs.downlink]
    seconds = np.concatenate([np.ravel(part) for part in parts])
    return np.unique(seconds[np.isfinite(seconds)])


def _share(total: float, staleness: int | None) -> float:
    """Return the share of T_sum in a step with this K; infinite if nothing is within the limit."""
    if staleness is None:
        return 0.0 if total < math.inf else math.inf
    return total / (staleness + 1)


class _Limited:
    """The least T_sum, round trips included, of partitions in which no part takes longer than a limit."""

    def __init__(self, costs: ChainCosts, limit: float) -> None:
        """limit: in seconds."""
        self._costs, self._limit = costs, limit
        last = costs.rows(costs.links)[:, -1]
        self.totals: list[Floats] = [np.where(last <= limit, last, math.inf)]
        """Seconds of the stages n and after on the blocks from i on, at [n][i]. For stage 0 at i = 0 alone."""
        for stage in reversed(range(costs.links)):
            self.totals.insert(0, np.min(self.with_link(stage) + self.totals[0], axis=1))

    @property
    def least_total(self) -> float:
        """Return the least T_sum; infinite if nothing is within the limit."""
        return float(self.totals[0][0])

    def with_link(self, stage: int) -> Floats:
        """Return the seconds of a stage on [i, j) and of the link after it, at [i, j], with the width that takes the fewest."""
        widths = range(len(self._costs.widths))
        return functools.reduce(np.minimum, (self.at_width(stage, width) for width in widths))

    def at_width(self, stage: int, width: int) -> Floats:
        """Return the same with one width, by its index."""
        costs, limit = self._costs, self._limit
        encode, uplink, downlink = costs.encode[:, width], costs.uplink[stage, :, width], costs.downlink[stage]
        crossing = np.where((uplink <= limit) & (downlink <= limit), uplink + downlink, math.inf)
        computing = costs.rows(stage) + encode
        seconds = computing + (crossing + costs.round_trips[stage])
        return np.where(computing <= limit, seconds, math.inf)


def _first_within(costs: ChainCosts, seconds: float, staleness: int | None) -> Partition:
    """Return the partition within so many seconds a step that has the smallest cuts, and then the most bits."""
    limited = _Limited(costs, seconds)
    spare = sys.float_info.max if staleness is None else seconds * (staleness + 1)
    ends = [0]
    for stage in range(costs.links):
        taken = limited.with_link(stage)[ends[-1]]
        ends.append(int(np.argmax(taken + limited.totals[stage + 1] <= spare)))
        spare -= float(taken[ends[-1]])
    spare -= float(limited.totals[-1][ends[-1]])
    bits = []
    for stage, run in enumerate(pairwise(ends)):
        more = [float(limited.at_width(stage, width)[run]) for width in range(len(costs.widths))]
        more = [each - min(more) for each in more]
        width = next(index for index, each in enumerate(more) if each <= spare)
        bits.append(costs.widths[width])
        spare -= more[width]
    return Partition(tuple(ends[1:]), tuple(bits))
