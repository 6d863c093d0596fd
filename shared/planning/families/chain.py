"""Chains: workers that each run the next blocks, at least one each. A dynamic programme finds the best, equal to trying all.

Paper 001 minimises the slowest part alone (its A(l, n)). With K in it a step has two criteria, T_max and T_sum. So a dynamic
programme finds the least T_sum where no part may take longer than a limit; that sum falls as the limit rises, so the best limit
is found by halving among the seconds that parts can have.
"""

import functools
import math
import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from shared.errors import PlanError
from shared.planning.cost import Conditions, loads_of
from shared.planning.families.question import Question
from shared.planning.layout import Layout, stacked
from shared.planning.measurements import FLOAT32_BITS, Floats
from shared.planning.space import check_staleness, check_widths

ROUNDING = 1e-12
"""Part of the seconds of a step that is nothing but the rounding of sums: two layouts so near are equal."""


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield the layout of the fewest seconds a step; of equals, that of the smallest cuts, and then of the most bits.

    Where K is left open, the least with which the slowest part alone counts. PlanError where nothing may be or was measured.
    """
    if question.is_pair:
        return
    parts, staleness = _Parts(question, at), question.staleness
    seconds = _least_seconds(parts, staleness)
    if not seconds < math.inf:
        raise PlanError(
            f"no partition of the {parts.blocks} blocks into {len(parts.stages)} stages can be chosen with "
            f"{', '.join(map(str, parts.widths))} bits: each has something that was not measured or is below min_bits; "
            "measure what the chain has as null, or allow more bit widths"
        )
    cuts, bits = _first_within(parts, seconds * (1.0 + ROUNDING), staleness)
    layout = stacked(question.profile, cuts, staleness or 0, bits)
    if staleness is None:
        ((longest,), (total,)) = loads_of(question.profile, [layout]).at(at)
        staleness = math.ceil(total / longest) - 1 if longest > 0.0 else 0
        layout = stacked(question.profile, cuts, max(0, staleness), bits)
    yield seconds, layout


def improves(question: Question, at: Conditions, seconds: float) -> bool:
    """Tell whether any layout takes less than so many seconds a step."""
    less = seconds * (1.0 - ROUNDING)
    return _share(_Limited(_Parts(question, at), less).least_total, question.staleness) <= less


class _Parts:
    """The seconds of everything that a layout can be made of; infinite where it may not or cannot be.

    Arrays by cut have L + 1 entries; by width, W: from many bits to few.
    """

    def __init__(self, question: Question, at: Conditions) -> None:
        """Raises PlanError for a K, a width or cuts that cannot be."""
        profile, space = question.profile, question.space
        check_staleness(space.staleness)
        check_widths(space.bits)
        self.blocks = len(profile)
        self.widths = tuple(sorted(set(space.bits), reverse=True))
        no_run = np.tri(self.blocks + 1, dtype=np.bool_)
        times = [worker.at_once if question.staleness == 0 else worker.replayed for worker in profile.workers]
        self.stages: Floats = np.array(
            [np.where(no_run, math.inf, _known(table * at.factors[place])) for place, table in enumerate(times)]
        )
        """Seconds of stage n on the blocks [i, j), at [n, i, j]. Shape (N, L + 1, L + 1)."""
        if space.cuts is not None:
            self._keep_only(space.cuts)
        feature_bytes, gradient_bytes = profile.sizes
        encode = self._encode(question, feature_bytes)
        self.encode: Floats = np.array([encode * at.factors[place] for place in range(len(times) - 1)])
        """Seconds that stage n encodes a feature, by cut and width. Shape (N - 1, L + 1, W)."""
        feature_bits = _known(np.multiply.outer(feature_bytes, np.array(self.widths) * 8 / FLOAT32_BITS))
        links = [at.link(place, place + 1) for place in range(len(times) - 1)]
        self.uplink: Floats = np.array([feature_bits / link.uplink for link in links])
        """Seconds of a feature on link n, by cut and width. Shape (N - 1, L + 1, W)."""
        self.downlink: Floats = np.array([_known(gradient_bytes * 8) / link.downlink for link in links])
        """Seconds of an error gradient on link n, by cut. Shape (N - 1, L + 1)."""
        self.round_trips: tuple[float, ...] = tuple(link.round_trip_seconds for link in links)

    @property
    def links(self) -> int:
        """Return N - 1, the number of links."""
        return len(self.round_trips)

    def rows(self, stage: int) -> Floats:
        """Return its rows of `stages`, by the block that it begins with: 0 for the first. Shape (1 or L + 1, L + 1)."""
        return self.stages[stage] if stage else self.stages[stage, :1]

    def _encode(self, question: Question, feature_bytes: Floats) -> Floats:
        profile, narrow = question.profile, np.array(self.widths) < FLOAT32_BITS
        seconds = np.full(self.blocks + 1, math.inf)
        if profile.encode is not None:
            seconds = _known(profile.encode.seconds_per_byte * feature_bytes + profile.encode.seconds)
        encode = np.where(narrow, seconds[:, np.newaxis], 0.0)
        if profile.min_bits is not None:
            fewest = np.array(profile.min_bits, dtype=np.float64)[:, np.newaxis]
            bounded_widths = ~np.isin(self.widths, question.space.uncalibrated_bits)
            encode = np.where((np.array(self.widths) >= fewest) | ~bounded_widths, encode, math.inf)
        return encode

    def _keep_only(self, cuts: tuple[int, ...]) -> None:
        """Raises PlanError for cuts that do not rise from 1 to L - 1, one a link."""
        ends = (0, *cuts, self.blocks)
        if len(ends) != len(self.stages) + 1 or any(stop <= first for first, stop in pairwise(ends)):
            raise PlanError(
                f"the cuts are {', '.join(map(str, cuts))}; with {self.blocks} blocks on {len(self.stages)} stages there must "
                f"be {len(self.stages) - 1}, rising, from 1 to {self.blocks - 1}"
            )
        only = np.full_like(self.stages, math.inf)
        for stage, run in enumerate(pairwise(ends)):
            only[(stage, *run)] = self.stages[(stage, *run)]
        self.stages = only


def _known(numbers: Floats) -> Floats:
    """Make unknown numbers infinite, so that nothing chooses them."""
    return np.where(np.isnan(numbers), math.inf, numbers)


def _least_seconds(parts: _Parts, staleness: int | None) -> float:
    """Return the seconds a step of the best partition; infinite if there is none."""
    limits = _limits(parts)
    below, reached = 0, len(limits)
    before = after = math.inf
    # The share of the sum only falls and the limit only rises. The best is on either side of the place where they meet.
    while below < reached:
        middle = (below + reached) // 2
        share = _share(_Limited(parts, float(limits[middle])).least_total, staleness)
        if share <= limits[middle]:
            reached, after = middle, float(limits[middle])
        else:
            below, before = middle + 1, share
    return min(before, after)


def _limits(parts: _Parts) -> Floats:
    """Return all seconds that a stage or a direction of a link can take, rising."""
    coded = [parts.rows(stage)[:, :, np.newaxis] + parts.encode[stage] for stage in range(parts.links)]
    every = [*coded, parts.rows(parts.links)[:, -1], parts.uplink, parts.downlink]
    seconds = np.concatenate([np.ravel(part) for part in every])
    return np.unique(seconds[np.isfinite(seconds)])


def _share(total: float, staleness: int | None) -> float:
    """Return the share of T_sum in a step with this K; infinite if nothing is within the limit."""
    if staleness is None:
        return 0.0 if total < math.inf else math.inf
    return total / (staleness + 1)


class _Limited:
    """The least T_sum, round trips included, of partitions in which no part takes longer than a limit."""

    def __init__(self, parts: _Parts, limit: float) -> None:
        """limit: in seconds."""
        self._parts, self._limit = parts, limit
        last = parts.rows(parts.links)[:, -1]
        self.totals: list[Floats] = [np.where(last <= limit, last, math.inf)]
        """Seconds of the stages n and after on the blocks from i on, at [n][i]. For stage 0 at i = 0 alone."""
        for stage in reversed(range(parts.links)):
            self.totals.insert(0, np.min(self.with_link(stage) + self.totals[0], axis=1))

    @property
    def least_total(self) -> float:
        """Return the least T_sum; infinite if nothing is within the limit."""
        return float(self.totals[0][0])

    def with_link(self, stage: int) -> Floats:
        """Return the seconds of a stage on [i, j) and of the link after it, at [i, j], with the width that takes the fewest."""
        widths = range(len(self._parts.widths))
        return functools.reduce(np.minimum, (self.at_width(stage, width) for width in widths))

    def at_width(self, stage: int, width: int) -> Floats:
        """Return the same with one width, by its index."""
        parts, limit = self._parts, self._limit
        encode, uplink, downlink = parts.encode[stage, :, width], parts.uplink[stage, :, width], parts.downlink[stage]
        crossing = np.where((uplink <= limit) & (downlink <= limit), uplink + downlink, math.inf)
        computing = parts.rows(stage) + encode
        seconds = computing + (crossing + parts.round_trips[stage])
        return np.where(computing <= limit, seconds, math.inf)


def _first_within(parts: _Parts, seconds: float, staleness: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the partition within so many seconds a step that has the smallest cuts, and then the most bits."""
    limited = _Limited(parts, seconds)
    spare = sys.float_info.max if staleness is None else seconds * (staleness + 1)
    ends = [0]
    for stage in range(parts.links):
        taken = limited.with_link(stage)[ends[-1]]
        ends.append(int(np.argmax(taken + limited.totals[stage + 1] <= spare)))
        spare -= float(taken[ends[-1]])
    spare -= float(limited.totals[-1][ends[-1]])
    bits = []
    for stage, run in enumerate(pairwise(ends)):
        more = [float(limited.at_width(stage, width)[run]) for width in range(len(parts.widths))]
        more = [each - min(more) for each in more]
        width = next(index for index, each in enumerate(more) if each <= spare)
        bits.append(parts.widths[width])
        spare -= more[width]
    return tuple(ends[1:]), tuple(bits)
