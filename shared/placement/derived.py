"""Facts that follow from a placement: crossings between workers, the stages of each worker, and the links. Pure."""

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.placement.facts import ModelFacts
from shared.placement.tiles import Cargo, Placement, Rows, Tile

AHEAD_IN_AN_EVALUATION = 2
AHEAD_WHERE_NOTHING_IS_STALE = 7
"""Steps beyond the oldest where no gradient and no weights come back, so that K bounds nothing."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Rows of something that go from one worker to another in every step.

    index: of a feature and of an error gradient, the block whose input it is (L: the output of the model); of weights and
    their gradients, the block. Labels have index L.
    """

    sender: str
    receiver: str
    cargo: Cargo
    index: int
    rows: Rows
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.sender, self.receiver, self.cargo, self.index, self.rows)))

    def __hash__(self) -> int:
        """Return the hash, computed once: crossings are looked up many times a step."""
        return self._hash


class Link(NamedTuple):
    """Two workers that exchange anything; `dialer` is the one nearer to the edge."""

    dialer: str
    listener: str


def stages(placement: Placement, worker: str) -> tuple[Tile, ...]:
    """List the stages of a worker: its tiles, those joined that follow each other on the same samples.

    A shared block is a stage of its own, so that its gradient leaves and its weights come while other blocks are computed.
    """
    shared = placement.shared_blocks
    joined: list[Tile] = []
    for first, stop, rows in _runs(placement.tiles_of(worker), shared):
        last = joined[-1] if joined else None
        if last and last.stop == first and last.rows == rows and shared.isdisjoint((last.first, first)):
            first = joined.pop().first
        joined.append(Tile(worker, first, stop, rows))
    return tuple(joined)


def _runs(tiles: Iterable[Tile], shared: Collection[int]) -> Iterator[tuple[int, int, Rows]]:
    """The blocks of tiles as runs, each shared block by itself."""
    for tile in tiles:
        for is_shared, blocks in itertools.groupby(tile.blocks, shared.__contains__):
            run = tuple(blocks)
            for first, stop in [(block, block + 1) for block in run] if is_shared else [(run[0], run[-1] + 1)]:
                yield first, stop, tile.rows


def loss_rows(placement: Placement, worker: str) -> Rows | None:
    """The samples whose loss a worker computes: those on which it holds the last block."""
    for tile in placement.holders(placement.blocks - 1):
        if tile.worker == worker:
            return tile.rows
    return None


def crossings(placement: Placement) -> tuple[Crossing, ...]:
    """All that goes forward in a step: features by block, then labels. Each has its error gradient coming back."""
    return (*_features(placement), *_labels(placement))


def _features(placement: Placement) -> Iterator[Crossing]:
    for block in range(placement.blocks):
        receivers = [(tile.worker, tile.rows) for tile in placement.holders(block)]
        for sender, receiver, rows in _overlaps(_makers(placement, block), receivers):
            yield Crossing(sender, receiver, Cargo.FEATURE, block, rows)


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


def _labels(placement: Placement) -> Iterator[Crossing]:
    last = placement.blocks
    heads = [(tile.worker, tile.rows) for tile in placement.holders(last - 1)]
    for sender, receiver, rows in _overlaps(_makers(placement, 0), heads):
        yield Crossing(sender, receiver, Cargo.LABEL, last, rows)


def gradient_crossings(placement: Placement, model: ModelFacts) -> tuple[Crossing, ...]:
    """The error gradients that come back, last blocks first: one for each feature below which anything learns."""
    return _answers(_features(placement), model)


def _answers(features: Iterable[Crossing], model: ModelFacts) -> tuple[Crossing, ...]:
    forward = [one for one in features if one.cargo is Cargo.FEATURE and model.learns_below(one.index)]
    return tuple(
        Crossing(one.receiver, one.sender, Cargo.ERROR_GRADIENT, one.index, one.rows) for one in reversed(forward)
    )


def weight_crossings(placement: Placement, model: ModelFacts) -> tuple[Crossing, ...]:
    """Gradient parts of shared blocks to their owners, in the order of their samples, and the weights that come back."""
    pushes: list[Crossing] = []
    pulls: list[Crossing] = []
    for block in sorted(placement.shared_blocks):
        if not model.blocks[block].changes:
            continue
        owner = placement.owner(block)
        for tile in placement.holders(block):
            if tile.worker != owner:
                pushes.append(Crossing(tile.worker, owner, Cargo.WEIGHT_GRADIENT, block, tile.rows))
                pulls.append(Crossing(owner, tile.worker, Cargo.WEIGHTS, block, tile.rows))
    return (*pushes, *pulls)


class Flow(NamedTuple):
    """All that crosses in one step, of training or of an evaluation."""

    forward: tuple[Crossing, ...]
    """See `crossings`."""
    gradients: tuple[Crossing, ...]
    """See `gradient_crossings`; none in an evaluation."""
    weights: tuple[Crossing, ...]
    """See `weight_crossings`; none in an evaluation."""

    @property
    def everything(self) -> tuple[Crossing, ...]:
        """All of it."""
        return (*self.forward, *self.gradients, *self.weights)


def flow_of(placement: Placement, model: ModelFacts, *, training: bool) -> Flow:
    """List all crossings of a step. training: False for an evaluation."""
    forward = crossings(placement)
    if not training:
        return Flow(forward, (), ())
    return Flow(forward, _answers(forward, model), weight_crossings(placement, model))


def steps_ahead(placement: Placement, flow: Flow, *, training: bool) -> int:
    """Return the number of steps that may have begun anywhere beyond the oldest that some worker is still computing.

    K, where any worker waits for another's gradient or weights, and where nothing goes to another at all. Otherwise nothing can
    be stale, and more are let through, so that no worker stands still; in an evaluation a few, because it takes memory beside
    the training.
    """
    if not flow.forward:
        return placement.staleness
    if not training:
        return max(placement.staleness, AHEAD_IN_AN_EVALUATION)
    somebody_waits = flow.gradients or flow.weights
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
