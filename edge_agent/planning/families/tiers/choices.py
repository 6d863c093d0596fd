"""The divisions among three tiers that may be chosen, as columns: all of them, a grid of them, or the neighbours of some."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.columns import HOPS, Divisions, joined
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Floats, Ints
from shared.errors import PlanError

SHIFTS = tuple(sign * size for size in (1, 2, 4, 8, 16) for sign in (1, -1))
"""Blocks and samples by which a neighbour differs."""


class Choices:
    """The choices of one question."""

    def __init__(self, question: Question) -> None:
        """Raises PlanError if the profile has no codec of a permitted width."""
        profile, space = question.profile, question.space
        self._question = question
        self.blocks, self.batch_size, self.widths = len(profile), profile.batch_size, _widths_of(question)
        self._allow_alone = space.allow_edge_only
        self._may_have_inputs = np.array(
            [place == 0 or name in space.inputs_to for place, name in enumerate(profile.names)]
        )
        least = profile.fewest_samples
        self._least: Ints = np.array(
            [[max(least[first:stop], default=1) for stop in range(len(least) + 1)] for first in range(len(least) + 1)]
        )
        """Fewest samples of the blocks [i, j), at [i, j]."""
        labels_to = space.labels_to
        self._may_have_labels = np.array(
            [not place or labels_to is None or name in labels_to for place, name in enumerate(profile.names)]
        )
        self.may_all_have_inputs = bool(self._may_have_inputs.all())
        raw = [block.reads_raw for block in profile.blocks]
        self._raw_before: Ints = np.cumsum([0, *raw])
        """Number of blocks [0, c) that read raw samples, for each cut c."""
        self.first_cut = 0 if space.inputs_to.intersection(profile.names[1:]) else (*raw, False).index(False)

    def only(self, width: int) -> "Choices":
        """Return the same with one width."""
        return Choices(replace(self._question, space=replace(self._question.space, bits=(width,))))

    def count(self) -> int:
        """Return about how many divisions there are, widths aside."""
        cuts, batch = self.blocks + 1 - self.first_cut, self.batch_size
        return cuts * (cuts * cuts - 1) * batch * (batch - 1) // 2

    def listed(self, cuts: Sequence[int], shares: Sequence[int]) -> Divisions:
        """Return all permitted divisions with these m, p and shares, with every choice of widths."""
        triples = np.array(
            [(p, ms, ml) for p in cuts for ms in cuts for ml in cuts if p < ms <= ml], dtype=np.int64
        ).reshape(-1, 3)
        both = np.array(
            [(bs, bl) for bs in shares for bl in shares if bs + bl <= self.batch_size], dtype=np.int64
        ).reshape(-1, 2)
        every = joined([self._columns(order, triples, both) for order in permutations(range(3))])
        every = joined([self.without_s(cuts, shares), every.take(np.flatnonzero(self.permitted(every)))])
        return self.with_widths(every)

    def without_s(self, cuts: Sequence[int], shares: Sequence[int]) -> Divisions:
        """Return those of two roles, of one, and of the device alone, at 32 bits."""
        ends = [*cuts, *([] if self.blocks in cuts else range(max(cuts) + 1, self.blocks + 1))]
        pairs = np.array([(p, p, ml) for p in cuts for ml in ends if p < ml], dtype=np.int64).reshape(-1, 3)
        one = np.array([(0, bl) for bl in shares], dtype=np.int64).reshape(-1, 2)
        alone = np.array([(cut,) * 3 for cut in cuts if cut < self.blocks], dtype=np.int64).reshape(-1, 3)
        none = np.zeros((1, 2), dtype=np.int64)
        found = [self._columns((0, 1, 2), np.array([[self.blocks] * 3]), none)]
        for order in permutations(range(3)):
            found.append(self._columns(order, pairs, one))
            if order[0] and order[1] < order[2]:
                found.append(self._columns(order, alone, none))
        every = joined(found)
        return every.take(np.flatnonzero(self.permitted(every)))

    def least_samples(self, p: Ints, ms: Ints, ml: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the fewest samples of s, of l, and of o on [p, m_s) and on [m_s, m_l)."""
        return self._least[p, ms], self._least[p, ml], self._least[p, ms], self._least[ms, ml]

    def _columns(self, order: Sequence[int], blocks: Ints, samples: Ints) -> Divisions:
        """Return each of these (p, m_s, m_l) with each of these (b_s, b_l)."""
        each, count = np.repeat(blocks, len(samples), 0), len(blocks) * len(samples)
        shares = np.tile(samples, (len(blocks), 1))
        original, short, long = (np.full(count, place) for place in order)
        widths = np.full((count, 3, 3), FLOAT32_BITS)
        return Divisions._make((original, short, long, *each.T, *shares.T, widths))

    def permitted(self, of: Divisions) -> Bools:
        """Tell which may be chosen, widths aside, shape (n,)."""
        o, s, long, p, ms, ml = of.original, of.short, of.long, of.before, of.short_blocks, of.long_blocks
        bs, bl, top, batch = of.short_samples, of.long_samples, self.blocks, self.batch_size
        bo = batch - bs - bl
        good = (p >= 0) & (p <= ms) & (ms <= ml) & (ml <= top) & (bs >= 0) & (bl >= 0) & (bo >= 0)
        good &= ((bs > 0) == (ms > p)) & ((bl > 0) == (ml > p)) & ((bl > 0) | (bs == 0))
        # One that is another: o without a tile alone beside long, the device twice on whole batches.
        good &= (bl < batch) | ((ml < top) & (long > 0))
        is_alone = p == top
        good &= np.where(is_alone, (o == 0) & self._allow_alone, (o > 0) | (bl > 0))
        # Rows that were shifted out of range index nothing.
        p, ms, ml = (np.clip(cut, 0, top) for cut in (p, ms, ml))
        for samples, least in zip((bs, bl, bo, bo + bs), self.least_samples(p, ms, ml), strict=True):
            good &= (samples == 0) | (samples >= least)
        # o has gradients of the blocks that it owns, which tell of samples.
        begin = np.where((bo > 0) | ((bs > 0) & (bl > 0)), p, np.where((bs > 0) & (ms < ml), ms, ml))
        for worker, first, stop in ((s, p, ms), (long, p, ml), (o, begin, top)):
            good &= self._may_have_inputs[worker] | (self._raw_before[stop] == self._raw_before[first])
        may = self._may_have_labels  # o has the last block or owns it
        good &= may[o] & (may[s] | (bs == 0) | (ms < top)) & (may[long] | (bl == 0) | (ml < top))
        permitted: Bools = good
        return permitted

    def allows(self, of: Divisions) -> Bools:
        """Tell which may be chosen, shape (n,)."""
        sent = np.stack([of.widths[:, near, far] for near, far in HOPS], axis=1)
        allowed: Bools = self.permitted(of) & (~self._uses(of) | np.isin(sent, self.widths)).all(axis=1)
        return allowed

    def first_rows(self, of: Divisions) -> Ints:
        """Return the samples that o has of block p, shape (n,)."""
        rest = self.batch_size - of.long_samples
        mine = np.where(of.long_blocks > of.before, rest, self.batch_size)
        rows: Ints = np.where(of.short_blocks > of.before, rest - of.short_samples, mine)
        return rows

    def with_widths(self, of: Divisions) -> Divisions:
        """Return each with every choice of widths on the routes that carry features."""
        uses = self._uses(of)
        found = [of.take(slice(0))]
        for choice in np.array(list(np.ndindex(*[len(self.widths)] * len(HOPS)))):
            rows = np.flatnonzero(~(~uses & (choice > 0)).any(axis=1))
            if len(rows):
                picked = of.take(rows)
                for hop, width in zip(HOPS, choice, strict=True):
                    picked.widths[:, hop[0], hop[1]] = np.where(
                        uses[rows, HOPS.index(hop)], self.widths[width], FLOAT32_BITS
                    )
                found.append(picked)
        return joined(found)

    def _uses(self, of: Divisions) -> Bools:
        """Tell which routes carry features, and no raw samples, shape (n, 6). Raw samples travel as they are."""
        rows = (of.original, self.first_rows(of)), (of.short, of.short_samples), (of.long, of.long_samples)
        uses, raw = (np.zeros((of.rows, 3, 3), dtype=np.bool_) for _ in range(2))
        every = np.arange(of.rows)
        for worker, count in rows:
            uses[every, 0, worker] |= (of.before > 0) & (count > 0)
            raw[every, 0, worker] |= (of.before == 0) & (count > 0)
        for worker, stop, count in (
            (of.short, of.short_blocks, of.short_samples),
            (of.long, of.long_blocks, of.long_samples),
        ):
            uses[every, worker, of.original] |= (count > 0) & (stop < self.blocks)
        return np.stack([(uses & ~raw)[:, near, far] for near, far in HOPS], axis=1)

    def neighbours(self, of: Divisions) -> Divisions:
        """Return the permitted neighbours of each: cuts and shares that differ by little, each with its own widths and each
        other width on one route."""
        columns = np.stack([of.before, of.short_blocks, of.long_blocks, of.short_samples, of.long_samples], axis=1)
        moves = np.array(list(_moves()))
        moved = (columns[:, None] + moves).reshape(-1, 5)
        roles = [np.repeat(role, len(moves)) for role in (of.original, of.short, of.long)]
        # A role that is absent stays so.
        short, long = (np.repeat(count > 0, len(moves)) for count in (of.short_samples, of.long_samples))
        p, ms, ml, bs, bl = moved.T
        ms, bs = np.where(short, ms, p), np.where(short, bs, 0)
        ml, bl = np.where(long, ml, ms), np.where(long, bl, 0)
        others = Divisions._make((*roles, p, ms, ml, bs, bl, np.repeat(of.widths, len(moves), 0)))
        others = others.take(np.flatnonzero(self.permitted(others)))
        return joined([self._coded(others), *self._other_widths(of)])

    def with_other_shares(self, of: Divisions, step: int) -> tuple[Divisions, Ints]:
        """Return each with shares that differ by a step, row after row, and the rows of those that may be chosen."""
        moves = [(step, 0), (-step, 0), (0, step), (0, -step), (step, -step), (-step, step)]
        columns = [np.repeat(column, len(moves), 0) for column in of]
        for column, shift in zip((6, 7), np.tile(np.array(moves), (of.rows, 1)).T, strict=True):
            columns[column] = np.where(columns[column] > 0, columns[column] + shift, 0)
        moved = self._coded(Divisions._make(columns))
        return moved, np.flatnonzero(self.permitted(moved))

    def _coded(self, of: Divisions) -> Divisions:
        """Return the same with widths where features travel, and 32 bits elsewhere."""
        uses, kept = self._uses(of), of.take(np.arange(of.rows))
        for index, (near, far) in enumerate(HOPS):
            kept.widths[:, near, far] = np.where(uses[:, index], of.widths[:, near, far], FLOAT32_BITS)
        return kept

    def _other_widths(self, of: Divisions) -> Iterator[Divisions]:
        uses = self._uses(of)
        for (index, (near, far)), width in product(enumerate(HOPS), self.widths):
            rows = np.flatnonzero(uses[:, index] & (of.widths[:, near, far] != width))
            if len(rows):
                other = of.take(rows)
                other.widths[:, near, far] = width
                yield other


def _moves() -> Iterator[tuple[int, ...]]:
    """Yield the differences of p, m_s, m_l, b_s and b_l."""
    together = (
        (1, 0, 0, 0, 0),
        (0, 1, 0, 0, 0),
        (0, 0, 1, 0, 0),
        (1, 1, 1, 0, 0),
        (0, 1, 1, 0, 0),
        (0, 0, 0, 1, 0),
        (0, 0, 0, 0, 1),
        (0, 0, 0, 1, -1),
        (0, 0, 0, 1, 1),
    )
    for each, shift in product(together, SHIFTS):
        yield tuple(shift * one for one in each)


def lowest(seconds: Floats, count: int) -> Ints:
    """Return the rows of the least, rising."""
    rows: Ints = np.argsort(seconds, kind="stable")[:count]
    return rows


def _widths_of(question: Question) -> tuple[int, ...]:
    """Return the permitted widths of which the profile has a codec, many bits first. PlanError if there is none."""
    costs = question.profile.by_samples
    assert costs is not None
    widths = tuple(sorted(costs.widths.intersection(question.space.bits), reverse=True))
    if not widths:
        asked = ", ".join(map(str, question.space.bits))
        raise PlanError(
            f"the profile has no codec of {asked} bits; its codecs have {', '.join(map(str, sorted(costs.widths)))}; allow one "
            "of these, or measure others"
        )
    return widths
