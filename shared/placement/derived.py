"""Facts that follow from a placement: crossings between workers, the stages of each worker, and the links. Pure."""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shared.placement.facts import ModelFacts, ValueFacts
from shared.placement.tiles import GROUP, Cargo, Placement, Rows, Tile

AHEAD_IN_AN_EVALUATION = 2
AHEAD_WHERE_NOTHING_IS_STALE = 7
"""Steps beyond the oldest where no gradient and no weights come back, so that K bounds nothing."""


class BlockSlice(NamedTuple):
    """One of the slices of a block, in which a group takes gradients and hands out weights."""

    block: int
    number: int = 0
    """Its number, from 0 on; a block that is not cut is slice 0."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Rows of something that go from one worker to another in every step.

    index: of a feature and of an error gradient, the block whose input it is (L: the output of the model); of weights and
    their gradients, the block. Labels have index L. slots: of a feature, of an error gradient and of labels, the tensors
    that cross, and where features are recalled the numbers of the samples behind the labels; of norms, the blocks; of weights
    and their gradients, the number of the slice.
    """

    sender: str
    receiver: str
    cargo: Cargo
    index: int
    rows: Rows
    slots: tuple[int, ...] = (0,)
    at: int = 0
    """The block behind the stage that takes an error gradient."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_hash", hash((self.sender, self.receiver, self.cargo, self.index, self.rows, self.slots))
        )

    def __hash__(self) -> int:
        """Return the hash, computed once: crossings are looked up many times a step."""
        return self._hash

    @property
    def of_block(self) -> BlockSlice:
        """Return the slice, of weights and their gradients; all of anything else counts as one."""
        is_cut = self.cargo in (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS)
        return BlockSlice(self.index, self.slots[0] if is_cut else 0)


class Link(NamedTuple):
    """Two workers that exchange anything; `dialer` is the one nearer to the edge."""

    dialer: str
    listener: str


def stages(placement: Placement, worker: str, model: ModelFacts | None = None) -> tuple[Tile, ...]:
    """List the stages of a worker: its tiles, those joined that follow each other on the same samples.

    A shared block is a stage of its own, so that its gradient leaves and its weights come while other blocks are computed.
    model: where it recalls features, a stage begins where they are kept.
    """
    shared = placement.shared_blocks
    kept = _recalled_block(placement, model) if model is not None and model.recalls else 0
    joined: list[Tile] = []
    for first, stop, rows in _runs(placement.tiles_of(worker), shared, kept):
        last = joined[-1] if joined else None
        if last and last.stop == first != kept and last.rows == rows and shared.isdisjoint((last.first, first)):
            first = joined.pop().first
        joined.append(Tile(worker, first, stop, rows))
    return tuple(joined)


def _runs(tiles: Iterable[Tile], shared: Collection[int], kept: int) -> Iterator[tuple[int, int, Rows]]:
    """The blocks of tiles as runs, each shared block by itself. kept: a block with which a run begins."""
    for tile in tiles:
        for (is_shared, _), blocks in itertools.groupby(tile.blocks, lambda block: (block in shared, block < kept)):
            run = tuple(blocks)
            for first, stop in [(block, block + 1) for block in run] if is_shared else [(run[0], run[-1] + 1)]:
                yield first, stop, tile.rows


def _recalled_block(placement: Placement, model: ModelFacts) -> int:
    """The block whose input is recalled: behind the cut, and where one worker has all, behind the blocks that never change."""
    return placement.tiles_of(placement.holders(placement.blocks - 1)[0].worker)[0].first or model.steady_blocks


def kept_stage(placement: Placement, model: ModelFacts) -> Tile:
    """Return the stage at whose input the features of samples are kept, where they are recalled or changes of them cross."""
    return stages(placement, placement.holders(placement.blocks - 1)[0].worker, model)[-1]


def loss_rows(placement: Placement, worker: str) -> Rows | None:
    """The samples whose loss a worker computes: those on which it holds the last block."""
    for tile in placement.holders(placement.blocks - 1):
        if tile.worker == worker:
            return tile.rows
    return None


def crossings(placement: Placement, model: ModelFacts) -> tuple[Crossing, ...]:
    """All that goes forward in a step: features by block, then labels."""
    return (*_features(placement, model), *_labels(placement, model))


def _features(placement: Placement, model: ModelFacts) -> Iterator[Crossing]:
    """Features that stages read and their workers lack, from those that have made them: nobody gets a value that it has."""
    makers = _Makers(placement)
    had: dict[tuple[str, int], list[Rows]] = defaultdict(list)
    for stage in _all_stages(placement, model):
        whole = [stage.rows]
        found: dict[tuple[str, Rows], list[int]] = {}
        for slot in model.read_slots(stage.first, stage.stop):
            value = model.features[stage.first][slot]
            several = len(model.values[value].readers) > 1
            lacking = _without(stage.rows, had[stage.worker, value]) if several else whole
            for rows in lacking:
                for maker, both in makers.of(model.values[value].feature, rows):
                    if maker != stage.worker:
                        found.setdefault((maker, both), []).append(slot)
            if several:
                had[stage.worker, value].append(stage.rows)
        for (maker, rows), slots in found.items():
            yield Crossing(maker, stage.worker, Cargo.FEATURE, stage.first, rows, tuple(slots))


def _all_stages(placement: Placement, model: ModelFacts) -> list[Tile]:
    """The stages of all workers, by their first blocks and then their samples."""
    found = [stage for worker in placement.workers for stage in stages(placement, worker, model)]
    return sorted(found, key=lambda stage: (stage.first, stage.rows.begin))


def _without(rows: Rows, others: list[Rows]) -> list[Rows]:
    """One stretch with all samples that are in none of the others; none where there are no such samples."""
    begin, end = rows.begin, rows.end
    for other in sorted(others, key=lambda each: each.begin):
        if other.begin <= begin:
            begin = max(begin, other.end)
    for other in sorted(others, key=lambda each: -each.end):
        if other.end >= end:
            end = min(end, other.begin)
    return [Rows(begin, end)] if begin < end else []


class _Makers(dict[int, list[tuple[str, Rows]]]):
    """The workers that have made each feature, looked up once a feature."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement

    def __missing__(self, feature: int) -> list[tuple[str, Rows]]:
        self[feature] = _makers(self._placement, feature)
        return self[feature]

    def of(self, feature: int, rows: Rows) -> Iterator[tuple[str, Rows]]:
        """List the workers that have made any of these rows, with these."""
        makers = self[feature]
        first = max(bisect.bisect_right(makers, rows.begin, key=lambda maker: maker[1].begin) - 1, 0)
        for worker, made in itertools.islice(makers, first, None):
            if made.begin >= rows.end:
                break
            if (both := made.overlap(rows)) is not None:
                yield worker, both


def _overlaps(senders: list[tuple[str, Rows]], receivers: list[tuple[str, Rows]]) -> Iterator[tuple[str, str, Rows]]:
    """The samples that two others have in common, by receiver and then by sender. Both lists cover the batch, in its order."""
    first = 0
    for receiver, wanted in receivers:
        while first < len(senders) and senders[first][1].end <= wanted.begin:
            first += 1
        for sender, rows in itertools.islice(senders, first, None):
            if rows.begin >= wanted.end:
                break
            if sender != receiver and (both := rows.overlap(wanted)) is not None:
                yield sender, receiver, both


def _makers(placement: Placement, feature: int) -> list[tuple[str, Rows]]:
    """List the workers that have the rows of a feature, with these rows, in the order of the samples."""
    if feature == 0:
        sources = sorted(placement.sources, key=lambda source: source.rows.begin)
        return [(source.worker, source.rows) for source in sources]
    return [(tile.worker, tile.rows) for tile in placement.holders(feature - 1)]


def _labels(placement: Placement, model: ModelFacts) -> Iterator[Crossing]:
    last, slots = placement.blocks, tuple(range(model.label_tensors))
    heads = [(tile.worker, tile.rows) for tile in placement.holders(last - 1)]
    for sender, receiver, rows in _overlaps(_makers(placement, 0), heads):
        yield Crossing(sender, receiver, Cargo.LABEL, last, rows, slots)


def gradient_crossings(placement: Placement, model: ModelFacts) -> tuple[Crossing, ...]:
    """The error gradients that come back, last blocks first: of each stage to those that add them up; see `answers`."""
    found: list[Crossing] = []
    for stage, routes in answers(placement, model).items():
        together: dict[tuple[str, Rows, int], list[int]] = {}
        for slot, receiver, at, rows in routes:
            if receiver != stage.worker:
                together.setdefault((receiver, rows, at), []).append(slot)
        for (receiver, rows, at), slots in together.items():
            cargo = Cargo.ERROR_GRADIENT
            found.append(Crossing(stage.worker, receiver, cargo, stage.first, rows, tuple(slots), at))
    return tuple(reversed(found))


class Answer(NamedTuple):
    """The way of the error gradient that a stage has at one of its inputs."""

    slot: int
    receiver: str
    at: int
    """The block behind the receiver's stage that takes it."""
    rows: Rows


def answers(placement: Placement, model: ModelFacts) -> dict[Tile, list[Answer]]:
    """By stage, the ways of its error gradients where they are of use: to the stages that have made what it reads.

    Autograd adds the uses of a tensor one after the other, the last first. So on its way, a sum of later uses passes by the
    next earlier stage that uses the tensor several times.
    """
    everyone = _all_stages(placement, model)
    makers = _Makers(placement)
    ends = {(stage.worker, block): stage.stop for stage in everyone for block in stage.blocks}
    return {stage: list(_answers_of(stage, model, everyone, makers, ends)) for stage in everyone}


def _answers_of(
    stage: Tile, model: ModelFacts, everyone: list[Tile], makers: "_Makers", ends: Mapping[tuple[str, int], int]
) -> Iterator[Answer]:
    if not model.answered_slots(stage.first, stage.stop):
        return
    for slot in model.read_slots(stage.first, stage.stop):
        value = model.value(stage.first, slot)
        if not value.returns:
            continue
        left = [stage.rows]
        if len(value.readers) > 2:
            for other in reversed(everyone):
                if value.feature <= other.first < stage.first and _adds(other, value):
                    left, taken = _parted(left, other.rows)
                    yield from (Answer(slot, other.worker, other.stop, rows) for rows in taken)
        for rows in left:
            for maker, made in makers.of(value.feature, rows):
                yield Answer(slot, maker, ends[maker, value.feature - 1], made)


def _adds(stage: Tile, value: ValueFacts) -> bool:
    return sum(stage.first <= reader < stage.stop for reader in value.readers) > 1


def _parted(rows: list[Rows], taken: Rows) -> tuple[list[Rows], list[Rows]]:
    """The rows that are left of these without others, and those that both have."""
    left = [
        part
        for each in rows
        for part in (Rows(each.begin, min(each.end, taken.begin)), Rows(max(each.begin, taken.end), each.end))
        if part.begin < part.end
    ]
    return left, [both for each in rows if (both := each.overlap(taken)) is not None]


def weight_crossings(placement: Placement, model: ModelFacts) -> tuple[Crossing, ...]:
    """Gradient parts of shared blocks to their owners, in the order of their samples, and the weights that come back.

    Each slice of a block goes by itself.
    """
    pushes: list[Crossing] = []
    pulls: list[Crossing] = []
    for block in sorted(placement.shared_blocks):
        if not model.blocks[block].changes:
            continue
        owner = placement.owner(block)
        for tile in placement.holders(block):
            if tile.worker != owner:
                for number in range(model.blocks[block].slices):
                    slots = (number,)
                    pushes.append(Crossing(tile.worker, owner, Cargo.WEIGHT_GRADIENT, block, tile.rows, slots))
                    pulls.append(Crossing(owner, tile.worker, Cargo.WEIGHTS, block, tile.rows, slots))
    return (*pushes, *pulls)


def to_group(placement: Placement, one: BlockSlice) -> Crossing:
    """The gradient of a slice that the owner of the block gives to the group: no link carries it."""
    whole = Rows(0, placement.batch_size)
    return Crossing(placement.owner(one.block), GROUP, Cargo.WEIGHT_GRADIENT, one.block, whole, (one.number,))


def from_group(placement: Placement, one: BlockSlice) -> Crossing:
    """The weights of a slice that the owner of the block takes from the group, once all members' gradients are in them."""
    whole = Rows(0, placement.batch_size)
    return Crossing(GROUP, placement.owner(one.block), Cargo.WEIGHTS, one.block, whole, (one.number,))


class Flow(NamedTuple):
    """All that crosses in one step, of training or of an evaluation."""

    forward: tuple[Crossing, ...]
    """See `crossings`."""
    gradients: tuple[Crossing, ...]
    """See `gradient_crossings`; none in an evaluation."""
    weights: tuple[Crossing, ...]
    """See `weight_crossings`; none in an evaluation."""
    norms: tuple[Crossing, ...] = ()
    """See `norm_crossings`; they follow from the links that all others need."""
    scales: tuple[Crossing, ...] = ()
    """See `scale_crossings`; the same."""

    @property
    def everything(self) -> tuple[Crossing, ...]:
        """All of it."""
        return (*self.scales, *self.forward, *self.gradients, *self.weights, *self.norms)


def flow_of(placement: Placement, model: ModelFacts, *, training: bool) -> Flow:
    """List all crossings of a step. training: False for an evaluation."""
    forward = crossings(placement, model)
    if not training:
        return Flow(forward, (), ())
    if model.recalls or model.counts_labels:
        forward = tuple(_with_one_more(one) if one.cargo is Cargo.LABEL else one for one in forward)
    return Flow(forward, gradient_crossings(placement, model), weight_crossings(placement, model))


def _with_one_more(labels: Crossing) -> Crossing:
    """The same labels and, in one slot more, the numbers of the samples of the batch, or the counts of its labels."""
    return replace(labels, slots=(*labels.slots, len(labels.slots)))


def steps_ahead(placement: Placement, flow: Flow, *, training: bool, merged: bool = False) -> int:
    """Return the number of steps that may have begun anywhere beyond the oldest that some worker is still computing.

    K, where any worker waits for another's gradient or weights, and where nothing goes to another at all. Otherwise nothing can
    be stale, and more are let through, so that no worker stands still; in an evaluation a few, because it takes memory beside
    the training. merged: True if weights come from a group.
    """
    if not flow.forward:
        return placement.staleness
    if not training:
        return max(placement.staleness, AHEAD_IN_AN_EVALUATION)
    somebody_waits = merged or flow.gradients or flow.weights or flow.norms
    return placement.staleness if somebody_waits else max(placement.staleness, AHEAD_WHERE_NOTHING_IS_STALE)


def first_worker(placement: Placement) -> str:
    """The first worker that has anything of a session: it hears of all steps, and of all evaluations."""
    sources = {source.worker for source in placement.sources}
    return next(worker for worker in placement.workers if worker in sources or held_blocks(placement, worker))


def links_of(placement: Placement, flow: Flow) -> tuple[Link, ...]:
    """Return the pairs of workers that need a stream.

    The worker with fewer links between itself and the first worker dials, and of two with equally many the earlier one.
    So a worker that dials was dialled itself, and can report the state of its link. Sorted by the dialling worker, and
    then by the other. A worker with no crossings, for example with all blocks on samples of its own, gets a link to the
    first worker, to report.
    """
    pairs = {(one.sender, one.receiver) for one in flow.everything}
    first = first_worker(placement)
    busy = [source.worker for source in placement.sources] + [tile.worker for tile in placement.tiles]
    for worker in dict.fromkeys(busy):
        if worker not in _distances(first, pairs):
            pairs.add((first, worker))
    distances = _distances(first, pairs)
    ranked = sorted(distances, key=lambda worker: (distances[worker], placement.workers.index(worker)))
    ranks = {tuple(sorted((ranked.index(sender), ranked.index(receiver)))) for sender, receiver in pairs}
    return tuple(Link(ranked[near], ranked[far]) for near, far in sorted(ranks))


def _distances(first: str, pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the shortest distance of each worker from the first one, over these pairs."""
    distances, pairs = {first: 0}, tuple(pairs)
    reached = [first]
    for near in reached:
        for far in {worker for pair in pairs if near in pair for worker in pair}.difference(distances):
            distances[far] = distances[near] + 1
            reached.append(far)
    return distances


def held_blocks(placement: Placement, worker: str) -> tuple[int, ...]:
    """The blocks whose weights a worker holds, because it runs them or owns them."""
    return placement.held.get(worker, ())
