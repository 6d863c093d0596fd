"""Chains: workers that each run the next blocks, or none. A dynamic programme finds the best, equal to trying all.

Paper 001 minimises the slowest part alone (its A(l, n)). With K in it a step has two criteria, T_max and T_sum. So a dynamic
programme finds the least T_sum where no part may take longer than a limit; that sum falls as the limit rises, so the best limit
is found by halving among the seconds that parts can have. The first worker has the samples, and so the first blocks; any
other may be left out, and the link across it is used.
"""

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np

from edge_agent.planning.cost import Conditions, Loads, conditions_of, crossing_bits, encoding_seconds, loads_of
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.stacks import neighbours as neighbours
from edge_agent.planning.families.stacks import permits as permits
from edge_agent.planning.layout import Layout, stacked
from edge_agent.planning.measurements import Bools, Floats
from edge_agent.planning.space import check_staleness, check_widths
from shared.errors import PlanError

ROUNDING = 1e-12
"""Part of the seconds of a step that is nothing but the rounding of sums: two layouts so near are equal."""

MOST_LISTED = 2048
"""Layouts that are few enough to be weighed all the time."""


def is_for(question: Question) -> bool:
    """See `Family.is_for`."""
    return not question.is_pair and not question.is_tiers


def bounded(question: Question, at: Conditions) -> Iterator[tuple[float, Layout]]:
    """Yield the layout of the fewest seconds a step.

    Of equals, the one whose first worker takes the rest; then the one with the smallest first cut, and with the nearest
    worker after it, and so on; then that of the most bits, and of the smallest K. Where K is left open, the least with which
    the slowest part alone counts. PlanError where nothing may be or was measured.
    """
    found = [
        (each.least_seconds(), each) for each in (_Parts(question, at, one) for one in question.choices_of_staleness)
    ]
    seconds = min(least for least, _ in found)
    parts = next(each for least, each in found if least <= seconds * (1.0 + ROUNDING))
    if not seconds < math.inf:
        raise PlanError(
            f"no partition of the {parts.blocks} blocks into {parts.workers} stages can be chosen with "
            f"{', '.join(map(str, parts.widths))} bits: each has something that was not measured or is below min_bits; "
            "measure what the chain has as null, or allow more bit widths"
        )
    staleness = parts.staleness
    path, cuts, bits = parts.first_within(seconds * (1.0 + ROUNDING))
    workers = [question.permitted[place] for place in path]
    layout = stacked(question.profile, cuts, staleness or 0, bits, workers)
    if staleness is None:
        ((longest,), (total,)) = loads_of(question.profile, [layout]).at(at)
        staleness = math.ceil(total / longest) - 1 if longest > 0.0 else 0
        layout = replace(layout, staleness=max(0, staleness))
    yield seconds, layout


def listed(question: Question) -> tuple[list[Layout], Loads] | None:
    """Return all layouts that may be chosen and were measured, with their loads; None where they are too many.

    PlanError for a K, a width or cuts that cannot be, and where nothing is left.
    """
    if _count(question) > MOST_LISTED:
        return None
    at = conditions_of(question.profile)
    parts = [_Parts(question, at, staleness) for staleness in question.choices_of_staleness]
    layouts = [layout for each in parts for layout in _permitted(question, each)]
    loads = loads_of(question.profile, layouts) if layouts else None
    measured: Bools = np.zeros(0, dtype=np.bool_) if loads is None else loads.measured()
    if loads is None or not measured.any():
        raise PlanError(
            f"nothing of the {len(question.profile)} blocks on {', '.join(question.permitted)} may be chosen or was measured; "
            "measure what the profile has as null, or allow more bit widths"
        )
    return [layout for layout, known in zip(layouts, measured, strict=True) if known], loads.take(measured)


def improves(question: Question, at: Conditions, seconds: float) -> bool:
    """Tell whether any layout takes less than so many seconds a step."""
    less = seconds * (1.0 - ROUNDING)
    return any(
        _share(_Limited(_Parts(question, at, staleness), less).least_total, staleness) <= less
        for staleness in question.choices_of_staleness
    )


def _count(question: Question) -> int:
    """Return an upper bound of the layouts that may be chosen."""
    others, cuts, widths = len(question.permitted) - 1, len(question.profile) - 1, len(set(question.space.bits))
    if question.space.cuts is not None:
        return len(question.choices_of_staleness) * int(widths**others)
    each: int = sum(math.comb(others, count) * math.comb(cuts, count) * widths**count for count in range(others + 1))
    return len(question.choices_of_staleness) * each


def _permitted(question: Question, parts: "_Parts") -> Iterator[Layout]:
    """Yield all layouts of one K, measured or not."""
    names, given = question.permitted, question.space.cuts
    for count in range(len(names)):
        for others in combinations(range(1, len(names)), count):
            path = 0, *others
            if not parts.may_end[path[-1]] or any(far not in parts.after[near] for near, far in pairwise(path)):
                continue
            for cuts in [given] if given is not None else combinations(range(1, parts.blocks), count):
                for bits in product(*map(parts.widths_at, cuts)):
                    workers = [names[place] for place in path]
                    yield stacked(question.profile, cuts, parts.staleness or 0, bits, workers)


class _Parts:
    """The seconds of everything that a layout with one K can be made of; infinite where it may not or cannot be.

    Workers are counted among the N permitted ones. Arrays by cut have L + 1 entries; by width, W: from many bits to few.
    """

    def __init__(self, question: Question, at: Conditions, staleness: int | None) -> None:
        """staleness: None for as large as need be. Raises PlanError for a K, a width or cuts that cannot be."""
        profile, space = question.profile, question.space
        check_staleness(space.staleness)
        check_widths(space.bits)
        self.staleness = staleness
        self.blocks, self.workers = len(profile), len(question.permitted)
        self.widths = tuple(sorted(set(space.bits), reverse=True))
        places = [profile.names.index(name) for name in question.permitted]
        no_run = np.tri(self.blocks + 1, dtype=np.bool_)
        tables = [profile.workers[place].seconds_at(staleness) for place in places]
        self.computing: Floats = np.array(
            [
                np.where(no_run, math.inf, _known(table * at.factors[place]))
                for place, table in zip(places, tables, strict=True)
            ]
        )
        """Seconds of worker n on the blocks [i, j), at [n, i, j]. Shape (N, L + 1, L + 1)."""
        last = self.workers - 1
        self.may_end = [space.allow_edge_only or place > 0 or not last for place in range(self.workers)]
        """Tells whether a worker may run the last block."""
        self.after = [range(place + 1, self.workers) for place in range(self.workers)]
        """Workers that may run the blocks after those of each."""
        if space.cuts is not None:
            self._keep_only(space.cuts)
            self.may_end = [place == last for place in range(self.workers)]
            self.after = [range(place + 1, min(place + 2, self.workers)) for place in range(self.workers)]
        encode = self._encode(question)
        self.encode: Floats = np.array([encode * at.factors[place] for place in places])
        """Seconds in which worker n encodes a feature, by cut and width. Shape (N, L + 1, W)."""
        cuts = np.arange(self.blocks + 1)[:, np.newaxis]
        feature_bits, gradient_bits = map(_known, crossing_bits(profile, cuts, np.array(self.widths)))
        links = {
            (near, far): at.link(places[near], places[far]) for near in range(self.workers) for far in self.after[near]
        }
        self.uplink = {pair: feature_bits / link.uplink for pair, link in links.items()}
        """Seconds of a feature from one worker to another, by cut and width. Shape (L + 1, W)."""
        self.downlink = {pair: gradient_bits[:, 0] / link.downlink for pair, link in links.items()}
        """Seconds of an error gradient back, by cut. Shape (L + 1,)."""
        self.round_trips = {pair: link.round_trip_seconds for pair, link in links.items()}

    def rows(self, worker: int) -> Floats:
        """Return its rows of `computing`, by the block that it begins with: 0 for the first. Shape (1 or L + 1, L + 1)."""
        return self.computing[worker] if worker else self.computing[worker, :1]

    def widths_at(self, cut: int) -> list[int]:
        """Return the widths that are permitted at a cut."""
        return [width for width, seconds in zip(self.widths, self.encode[0, cut], strict=True) if seconds < math.inf]

    def least_seconds(self) -> float:
        """Return the seconds a step of the best layout; infinite if there is none."""
        limits = self._limits()
        below, reached = 0, len(limits)
        before = after = math.inf
        # The share of the sum only falls and the limit only rises. The best is on either side of the place where they meet.
        while below < reached:
            middle = (below + reached) // 2
            share = _share(_Limited(self, float(limits[middle])).least_total, self.staleness)
            if share <= limits[middle]:
                reached, after = middle, float(limits[middle])
            else:
                below, before = middle + 1, share
        return min(before, after)

    def first_within(self, seconds: float) -> tuple[list[int], list[int], list[int]]:
        """Return the workers, cuts and bits of the first layout, as `bounded` orders them, within so many seconds a step."""
        limited = _Limited(self, seconds)
        spare = sys.float_info.max if self.staleness is None else seconds * (self.staleness + 1)
        path, ends = [0], [0]
        while not limited.ends_within(path[-1], ends[-1], spare):
            steps = [
                (int(np.argmax(limited.with_link(path[-1], far)[ends[-1]] + limited.totals[far] <= spare)), far)
                for far in self.after[path[-1]]
                if limited.least_after(path[-1], far)[ends[-1]] <= spare
            ]
            end, far = min(steps)
            spare -= float(limited.with_link(path[-1], far)[ends[-1], end])
            path.append(far)
            ends.append(end)
        spare -= float(self.computing[path[-1], ends[-1], -1])
        bits = []
        for (near, far), run in zip(pairwise(path), pairwise(ends), strict=True):
            more = [float(limited.at_width(near, far, width)[run]) for width in range(len(self.widths))]
            more = [each - min(more) for each in more]
            width = next(index for index, each in enumerate(more) if each <= spare)
            bits.append(self.widths[width])
            spare -= more[width]
        return path, ends[1:], bits

    def _limits(self) -> Floats:
        """Return all seconds that a worker or a direction of a link can take, rising."""
        coded = [
            self.rows(near)[:, :, np.newaxis] + self.encode[near] for near in range(self.workers) if self.after[near]
        ]
        last = [self.rows(place)[:, -1] for place in range(self.workers) if self.may_end[place]]
        every = [*coded, *last, *self.uplink.values(), *self.downlink.values()]
        seconds = np.concatenate([np.ravel(part) for part in every])
        return np.unique(seconds[np.isfinite(seconds)])

    def _encode(self, question: Question) -> Floats:
        profile, space, widths = question.profile, question.space, np.array(self.widths)
        every_cut = np.arange(len(profile) + 1)[:, np.newaxis]
        encode = _known(encoding_seconds(profile, every_cut, widths))
        encode = np.where(space.permits_bits(profile, every_cut, widths), encode, math.inf)
        for cut, width in zip(space.cuts or (), space.widths or (), strict=False):
            encode[cut, widths != width] = math.inf
        return encode

    def _keep_only(self, cuts: Sequence[int]) -> None:
        """Raises PlanError for cuts that do not rise from 1 to L - 1, one a link."""
        ends = (0, *cuts, self.blocks)
        if len(ends) != self.workers + 1 or any(stop <= first for first, stop in pairwise(ends)):
            raise PlanError(
                f"the cuts are {', '.join(map(str, cuts))}; with {self.blocks} blocks on {self.workers} stages there must "
                f"be {self.workers - 1}, rising, from 1 to {self.blocks - 1}"
            )
        only = np.full_like(self.computing, math.inf)
        for worker, run in enumerate(pairwise(ends)):
            only[(worker, *run)] = self.computing[(worker, *run)]
        self.computing = only


def _known(numbers: Floats) -> Floats:
    """Make unknown numbers infinite, so that nothing chooses them."""
    return np.where(np.isnan(numbers), math.inf, numbers)


def _share(total: float, staleness: int | None) -> float:
    """Return the share of T_sum in a step with this K; infinite if nothing is within the limit."""
    if staleness is None:
        return 0.0 if total < math.inf else math.inf
    return total / (staleness + 1)


class _Limited:
    """The least T_sum, round trips included, of layouts in which no part takes longer than a limit."""

    def __init__(self, parts: _Parts, limit: float) -> None:
        """limit: in seconds."""
        self._parts, self._limit = parts, limit
        self.totals: list[Floats] = [np.empty(0)] * parts.workers
        """Seconds of worker n and those after it on the blocks from i on, where it runs block i, at [n][i]; n = 0 has i = 0."""
        for worker in reversed(range(parts.workers)):
            last = parts.rows(worker)[:, -1]
            ways = (
                [np.where(last <= limit, last, math.inf)] if parts.may_end[worker] else [np.full(len(last), math.inf)]
            )
            ways += [self.least_after(worker, far) for far in parts.after[worker]]
            self.totals[worker] = functools.reduce(np.minimum, ways)

    @property
    def least_total(self) -> float:
        """Return the least T_sum; infinite if nothing is within the limit."""
        return float(self.totals[0][0])

    def ends_within(self, worker: int, first: int, spare: float) -> bool:
        """Tell whether a worker may and can run all blocks from one on within so many seconds."""
        seconds = float(self._parts.computing[worker, first, -1])
        return self._parts.may_end[worker] and seconds <= min(self._limit, spare)

    def least_after(self, near: int, far: int) -> Floats:
        """Return the least seconds of two workers and those after them, by the block that the nearer one begins with."""
        least: Floats = np.min(self.with_link(near, far) + self.totals[far], axis=1)
        return least

    def with_link(self, near: int, far: int) -> Floats:
        """Return the seconds of a worker on [i, j) and of the link after it, at [i, j], with the width that takes least."""
        widths = range(len(self._parts.widths))
        return functools.reduce(np.minimum, (self.at_width(near, far, width) for width in widths))

    def at_width(self, near: int, far: int, width: int) -> Floats:
        """Return the same with one width, by its index."""
        parts, limit, link = self._parts, self._limit, (near, far)
        uplink, downlink = parts.uplink[link][:, width], parts.downlink[link]
        crossing = np.where((uplink <= limit) & (downlink <= limit), uplink + downlink, math.inf)
        computing = parts.rows(near) + parts.encode[near, :, width]
        seconds = computing + (crossing + parts.round_trips[link])
        return np.where(computing <= limit, seconds, math.inf)
