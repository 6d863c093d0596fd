"""The planner of paper 004: the seconds of a step in phases (Eq. 12), and the division of the fewest.

Seconds of a block are affine in its samples, and none without samples. Transfers take the rate of their direction. The exchange
counts the blocks on which two workers or more have samples. Round trips, labels, codecs and the cost of messages count for
nothing. The device's own blocks [0, p), which the paper has not, are a phase before and after the others; with p = 0 this is
Eq. 12 to the letter.

With roles, cuts and b_s given, Eq. 12 is a sum of maxima of lines in b_l, so its least integer is found by halving. Cuts whose
phases cannot add up to less than what was found are left out.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import permutations
from typing import NamedTuple

import numpy as np

from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import Divisions, canonical
from edge_agent.planning.measurements import FLOAT32_BITS, Floats, Ints

CHUNK = 128
"""Cuts that are tried at once."""
ROUNDING = 1e-9
"""Part by which a sum may be off."""


class Line(NamedTuple):
    """Seconds that grow with samples, by cuts: none without samples, shape (n,)."""

    seconds: Floats
    slope: Floats

    def at(self, samples: Ints) -> Floats:
        """Return the seconds for so many samples, shape (n,), or as it broadcasts."""
        seconds: Floats = np.where(samples > 0, self.seconds + self.slope * samples, 0.0)
        return seconds


class Structures(NamedTuple):
    """Roles and cuts of n divisions, as in `Divisions`; (n,)."""

    original: Ints
    short: Ints
    long: Ints
    before: Ints
    short_blocks: Ints
    long_blocks: Ints

    def take(self, rows: Ints | slice) -> "Structures":
        """Return the rows that indices pick."""
        return Structures(*(column[rows] for column in self))


class Lines(NamedTuple):
    """The parts of the phases of n structures."""

    original_in: Line
    """o from its inputs to m_s, by b_o."""
    short_in: Line
    """s from its inputs to its outputs, by b_s."""
    long_in: Line
    """l from its inputs to m_s, by b_l."""
    original_middle: Line
    """o from m_s to m_l, by b_o + b_s."""
    long_middle: Line
    """l from m_s to its outputs, by b_l."""
    original_back: Line
    short_back: Line
    long_back: Line
    original_middle_back: Line
    long_middle_back: Line
    """The same five on the way back."""
    whole: Floats
    """Seconds of what has the whole batch, and of the updates."""
    short_exchange: Floats
    long_exchange: Floats

    def seconds(self, short: Ints, long: Ints, batch_size: int) -> Floats:
        """Return Eq. 12 for b_s and b_l."""
        rest = batch_size - short - long
        shared = np.maximum(
            np.where((short > 0) & (rest + long > 0), self.short_exchange, 0.0),
            np.where((long > 0) & (rest + short > 0), self.long_exchange, 0.0),
        )
        phases = (
            (self.original_in.at(rest), self.short_in.at(short), self.long_in.at(long)),
            (self.original_middle.at(rest + short), self.long_middle.at(long)),
            (self.original_back.at(rest), self.short_back.at(short), self.long_back.at(long)),
            (self.original_middle_back.at(rest + short), self.long_middle_back.at(long)),
        )
        return self.whole + shared + sum(reduce(np.maximum, phase) for phase in phases)

    def take(self, rows: Ints) -> "Lines":
        """Return the rows that indices pick, as columns of shape (n, 1)."""
        picked = (
            Line(one.seconds[rows, None], one.slope[rows, None]) if isinstance(one, Line) else one[rows, None]
            for one in self
        )
        return Lines._make(picked)

    def least(self, batch_size: int) -> Floats:
        """Return a lower bound of the seconds with samples at s and l: in each phase the workers share as suits them."""
        phases = (
            ((self.short_in, self.long_in), self.original_in),
            ((self.original_middle, self.long_middle), None),
            ((self.short_back, self.long_back), self.original_back),
            ((self.original_middle_back, self.long_middle_back), None),
        )
        shared = np.maximum(self.short_exchange, self.long_exchange)
        return self.whole + shared + sum(_least_shared(each, last, batch_size) for each, last in phases)


def _least_shared(each: tuple[Line, ...], may_be_absent: Line | None, batch_size: int) -> Floats:
    """Return the least of the largest of lines whose samples add up to a batch, or to any numbers at all."""
    least = _balanced(each, batch_size)
    return least if may_be_absent is None else np.minimum(least, _balanced((*each, may_be_absent), batch_size))


def _balanced(each: tuple[Line, ...], batch_size: int) -> Floats:
    slopes = [np.maximum(line.slope, 1e-18) for line in each]
    filled = reduce(np.add, [line.seconds / slope for line, slope in zip(each, slopes, strict=True)])
    return np.maximum(0.0, (batch_size + filled) / reduce(np.add, [1.0 / slope for slope in slopes]))


def lines_of(by: Bounds, of: Structures) -> Lines:
    """Return the parts of the phases."""
    o, s, long, p, ms, ml = of
    device, none = np.zeros_like(o), np.zeros_like(o)
    blocks, batch = np.full_like(o, by.blocks), np.full_like(o, by.batch_size)

    def carried(sender: Ints, receiver: Ints, cut: Ints) -> Floats:
        seconds: Floats = np.where(sender == receiver, 0.0, 8 * by.features[cut] / by.rates[sender, receiver])
        return seconds

    def line(worker: Ints, first: Ints, stop: Ints, *transfers: Floats, back: bool) -> Line:
        seconds, slope = by.line(worker, first, stop, back=back)
        return Line(seconds, reduce(np.add, transfers, slope))

    def inputs(worker: Ints) -> Floats:
        return carried(device, worker, p)

    def returned(worker: Ints) -> Floats:
        return np.where(p > 0, carried(worker, device, p), 0.0)

    def exchange(worker: Ints, stop: Ints) -> Floats:
        size = 8 * (by.weights[stop] - by.weights[p])
        seconds: Floats = size / by.rates[worker, o] + size / by.rates[o, worker]
        return np.where(worker == o, 0.0, seconds)

    own = [by.update(o, p, blocks), by.update(s, p, ms), by.update(long, p, ml)]
    updates = np.zeros((3, len(o)))
    rows = np.arange(len(o))
    for worker, seconds in zip((o, s, long), own, strict=True):
        updates[worker, rows] += seconds
    updates[0] += by.update(device, none, p)
    whole = reduce(np.maximum, updates)
    for pass_of in (by.forward, by.backward):
        whole = whole + pass_of(device, none, p, batch) + pass_of(o, ml, blocks, batch)
    return Lines(
        line(o, p, ms, inputs(o), back=False),
        line(s, p, ms, inputs(s), carried(s, o, ms), back=False),
        line(long, p, ms, inputs(long), back=False),
        line(o, ms, ml, back=False),
        line(long, ms, ml, carried(long, o, ml), back=False),
        line(o, p, ms, returned(o), back=True),
        line(s, p, ms, returned(s), carried(o, s, ms), back=True),
        line(long, p, ms, returned(long), back=True),
        line(o, ms, ml, back=True),
        line(long, ms, ml, carried(o, long, ml), back=True),
        whole,
        exchange(s, ms),
        exchange(long, ml),
    )


def eq12_seconds(by: Bounds, of: Divisions) -> Floats:
    """Return the seconds of a step in phases, shape (n,)."""
    return lines_of(by, Structures(*of[:6])).seconds(of.short_samples, of.long_samples, by.batch_size)


def hiertrain(by: Bounds, choices: Choices) -> tuple[Divisions, float, int] | None:
    """Return the division of the fewest seconds by Eq. 12, these seconds, and the number of evaluations; None without any.

    Where all trainers may have raw samples, p = 0, as in the paper. Of equals, the first that is found.
    """
    search = _HierTrainSearch(by, choices)
    search.run()
    return None if search.best is None else (*search.best, search.evaluated)


class _HierTrainSearch:
    def __init__(self, by: Bounds, choices: Choices) -> None:
        self._by, self._choices = by, choices
        self.best: tuple[Divisions, float] | None = None
        self.evaluated = 0

    def run(self) -> None:
        """Find the best."""
        choices = self._choices
        cuts = range(1) if choices.may_all_have_inputs else range(choices.first_cut, choices.blocks)
        alone = choices.listed([*cuts, choices.blocks], ())
        self._note(alone, eq12_seconds(self._by, alone))
        pairs = _structures([(p, p, end) for p in cuts for end in range(p + 1, choices.blocks + 1)])
        shares = np.arange(1, choices.batch_size + 1)[None, :]
        self._weigh(pairs, np.zeros_like(shares), shares)
        # A single helper may as well be s. Eq. 12 then has its inputs, blocks and outputs in one phase.
        self._weigh(pairs._replace(short_blocks=pairs.long_blocks), shares, np.zeros_like(shares))
        ends = range(1, choices.blocks + 1)
        of = _structures([(p, ms, ml) for p in cuts for ms in ends if ms > p for ml in ends if ml >= ms])
        lines = lines_of(self._by, of)
        least = lines.least(self._by.batch_size)
        order = np.argsort(least, kind="stable")
        for begin in range(0, len(order), CHUNK):
            rows = order[begin : begin + CHUNK]
            if self.best is not None and least[rows[0]] * (1 - ROUNDING) >= self.best[1]:
                break
            self._try(of.take(rows), lines.take(rows))

    def _try(self, of: Structures, lines: Lines) -> None:
        """Try every b_s and the best b_l of these cuts."""
        batch, limits = self._by.batch_size, self._choices.least_samples(of.before, of.short_blocks, of.long_blocks)
        short = np.arange(1, batch)[None, :]
        least_short, least_long, least_rest, least_middle = (each[:, None] for each in limits)
        within = (short >= least_short) & np.ones_like(least_short, dtype=np.bool_)
        below = least_long + np.zeros_like(short)
        above = np.minimum(batch - short - least_rest, batch - least_middle)
        each = [self._halved(lines, np.broadcast_to(short, below.shape), below, above)]
        each.append(batch - short + np.zeros_like(below))  # nothing of the first blocks is left for o
        for long in each:
            self._add(of, np.where(within, short, 0), np.where(within, long, 0), lines.seconds(short, long, batch))

    def _weigh(self, of: Structures, short: Ints, long: Ints) -> None:
        """Weigh each of these cuts with each of these shares, of shape (1, m)."""
        rows = np.arange(len(of.original))
        seconds = lines_of(self._by, of).take(rows).seconds(short, long, self._by.batch_size)
        self._add(of, *np.broadcast_arrays(short, long, seconds))

    def _add(self, of: Structures, short: Ints, long: Ints, seconds: Floats) -> None:
        """Note the best of these that may be chosen; all of shape (n, m). Those without samples are left out."""
        short, long, seconds = np.broadcast_arrays(short, long, seconds)
        self.evaluated += seconds.size
        cells = np.flatnonzero((short + long).ravel() > 0)
        if self.best is not None:
            cells = cells[seconds.ravel()[cells] < self.best[1]]
        columns = [column[cells // short.shape[1]] for column in of]
        widths = np.full((len(cells), 3, 3), FLOAT32_BITS)
        found = Divisions._make((*columns, short.ravel()[cells], long.ravel()[cells], widths))
        permitted = np.flatnonzero(self._choices.permitted(canonical(found)))
        self._note(found.take(permitted), seconds.ravel()[cells[permitted]])

    def _halved(self, lines: Lines, short: Ints, below: Ints, above: Ints) -> Ints:
        """Return the b_l of the fewest seconds from one to another, for each; below 1 where there is none."""
        batch, low, high = self._by.batch_size, below.copy(), np.maximum(below, above)
        while (open_ := low < high).any():
            middle = (low + high) // 2
            falls = lines.seconds(short, middle, batch) > lines.seconds(short, middle + 1, batch)
            self.evaluated += 2 * low.size
            low, high = np.where(open_ & falls, middle + 1, low), np.where(open_ & ~falls, middle, high)
        return np.where(below <= above, low, 0)

    def _note(self, of: Divisions, seconds: Floats) -> None:
        if of.rows and (self.best is None or seconds.min() < self.best[1]):
            row = int(np.argmin(seconds))
            self.best = of.take(np.array([row])), float(seconds[row])


def _structures(cuts: Sequence[tuple[int, int, int]]) -> Structures:
    """Return each of these p, m_s and m_l with all orders of roles."""
    each = np.array(cuts, dtype=np.int64).reshape(-1, 3)
    orders = np.array(list(permutations(range(3))))
    return Structures(*np.repeat(orders, len(each), 0).T, *np.tile(each, (len(orders), 1)).T)
