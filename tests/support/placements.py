"""Random valid placements, and an interpreter that carries out the programs of all workers over queues."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import assume
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.placement import (
    Backward,
    BlockFacts,
    Cargo,
    Clip,
    Crossing,
    Forward,
    Loss,
    ModelFacts,
    Norms,
    Permissions,
    Placement,
    Receive,
    Rows,
    Send,
    Source,
    StepPlan,
    Sum,
    Take,
    Tile,
    Update,
    check,
)

WORKERS = ("edge", "near", "far")
BATCH_SIZES = st.integers(3, 8)
EVERYBODY = Permissions(inputs_to=frozenset(WORKERS), labels_to=frozenset(WORKERS))


@st.composite
def divisions(draw, whole: int, parts: int):
    """`whole` in so many stretches, none empty, as their bounds."""
    inner = (
        draw(st.lists(st.integers(1, whole - 1), min_size=parts - 1, max_size=parts - 1, unique=True))
        if parts > 1
        else []
    )
    bounds = [0, *sorted(inner), whole]
    return list(pairwise(bounds))


@st.composite
def models(draw):
    """One to six blocks, some of which learn nothing, clipped each by itself."""
    blocks = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
    return ModelFacts(tuple(BlockFacts(f"b{i}", learns, buffers) for i, (learns, buffers) in enumerate(blocks)))


@st.composite
def placements(draw, model: ModelFacts, batch_sizes: st.SearchStrategy[int] = BATCH_SIZES):
    """Any valid placement of `model` on up to three workers: in each run of blocks the samples are divided among some."""
    blocks, batch_size = len(model.blocks), draw(batch_sizes)
    tiles: list[Tile] = []
    for first, stop in draw(divisions(blocks, draw(st.integers(1, min(blocks, 4))))):
        chosen = draw(st.permutations(WORKERS))[: draw(st.integers(1, 3))]
        for worker, (begin, end) in zip(chosen, draw(divisions(batch_size, len(chosen))), strict=True):
            tiles.append(Tile(worker, first, stop, Rows(begin, end)))
    holders = {block: {tile.worker for tile in tiles if block in tile.blocks} for block in range(blocks)}
    owners = {
        block: draw(st.sampled_from(WORKERS))
        for block in range(blocks)
        if len(holders[block]) > 1 or draw(st.booleans())
    }
    chosen = draw(st.permutations(WORKERS))[: draw(st.integers(1, 3))]
    sources = [
        Source(worker, Rows(begin, end))
        for worker, (begin, end) in zip(chosen, draw(divisions(batch_size, len(chosen))), strict=True)
    ]
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=batch_size,
        workers=WORKERS,
        tiles=tuple(draw(st.permutations(tiles))),
        sources=tuple(draw(st.permutations(sources))),
        owners=owners,
        labels=draw(st.sampled_from([None, frozenset(holders[blocks - 1])])),
        staleness=draw(st.integers(0, 3)),
    )


@st.composite
def valid_placements(draw, model: ModelFacts, batch_sizes: st.SearchStrategy[int] = BATCH_SIZES):
    """The same, where no part is too small for its statistics."""
    placement = draw(placements(model, batch_sizes))
    try:
        check(placement, model, EVERYBODY)
    except ConfigError:
        assume(False)
    return placement


@st.composite
def chains(draw):
    """Two to four workers, one after the other, the samples at the first; or first and last blocks there (labels stay)."""
    blocks = draw(divisions(4, draw(st.integers(2, 4))))
    names = [*WORKERS, "cloud"][: len(blocks)]
    if draw(st.booleans()):
        names[-1] = "edge"
    assume(len(set(names)) > 1)
    whole = Rows(0, 4)
    return Placement(
        version=3,
        blocks=4,
        batch_size=4,
        workers=tuple(dict.fromkeys(names)),
        tiles=tuple(Tile(worker, first, stop, whole) for worker, (first, stop) in zip(names, blocks, strict=True)),
        sources=(Source("edge", whole),),
        staleness=draw(st.integers(0, 3)),
    )


@dataclass
class Step:
    """The record of one step of all workers, taken as it happens. A value is there or it is not; nothing is
    computed."""

    placement: Placement
    model: ModelFacts
    features: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    """Worker -> (feature, sample) that it has."""
    gradients: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    labels: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    forwards: list[tuple[int, int]] = field(default_factory=list)
    """(block, sample) in the order of computing."""
    losses: list[int] = field(default_factory=list)
    backwards: list[tuple[int, int]] = field(default_factory=list)
    parts: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """(worker, block) -> the samples whose gradient it has."""
    norms: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Worker -> the blocks whose norms it knows."""
    clipping: set[str] = field(default_factory=set)
    """The workers that know the coefficient."""
    scaled: set[str] = field(default_factory=set)
    """The workers that know the scale of the loss."""
    updates: list[tuple[str, int]] = field(default_factory=list)
    fresh: set[tuple[str, int]] = field(default_factory=set)
    """(worker, block) whose weights are those after the step."""
    sent: list[Crossing] = field(default_factory=list)

    def run(self) -> "Step":
        """Carry out every worker's program, each as far as it can go, until all have ended."""
        self._plan = StepPlan(self.placement, self.model)
        self.scaled |= {self._plan.scaling_worker} - {None}
        left = {worker: deque(self._plan.program(worker)) for worker in self.placement.workers}
        arrived: set[Crossing] = set()
        while any(left.values()):
            moved = False
            for worker, operations in left.items():
                while operations and not (isinstance(operations[0], Receive) and operations[0].crossing not in arrived):
                    self._do(worker, operations.popleft(), arrived)
                    moved = True
            assert moved, (
                f"the workers wait for each other: {[operations[0] for operations in left.values() if operations]}"
            )
        assert set(self.sent) == {one.crossing for one in self._receives()}, "all that is sent is waited for"
        return self

    def _receives(self) -> list[Receive]:
        return [
            one for worker in self.placement.workers for one in self._plan.program(worker) if isinstance(one, Receive)
        ]

    def _do(self, worker: str, operation: object, arrived: set[Crossing]) -> None:
        match operation:
            case Take(rows):
                self.features[worker] |= {(0, sample) for sample in _samples(rows)}
                self.labels[worker] |= set(_samples(rows))
            case Send(crossing):
                assert crossing.sender == worker
                assert self._has(worker, crossing), f"{worker} sends what it has: {crossing}"
                assert crossing not in self.sent, "nothing is sent twice"
                self.sent.append(crossing)
                arrived.add(crossing)
            case Receive(crossing):
                assert crossing.receiver == worker
                self._take(worker, crossing)
            case Forward(stage):
                assert {(stage.first, sample) for sample in _samples(stage.rows)} <= self.features[worker]
                self.forwards += [(block, sample) for block in stage.blocks for sample in _samples(stage.rows)]
                self.features[worker] |= {(stage.stop, sample) for sample in _samples(stage.rows)}
            case Loss(rows):
                last = self.placement.blocks
                assert {(last, sample) for sample in _samples(rows)} <= self.features[worker]
                assert set(_samples(rows)) <= self.labels[worker]
                assert not self.model.scaled or worker in self.scaled
                self.losses += _samples(rows)
                self.gradients[worker] |= {(last, sample) for sample in _samples(rows)}
            case Backward(stage, input_gradient):
                assert {(stage.stop, sample) for sample in _samples(stage.rows)} <= self.gradients[worker]
                self.backwards += [(block, sample) for block in stage.blocks for sample in _samples(stage.rows)]
                for block in stage.blocks:
                    self.parts[worker, block] |= set(_samples(stage.rows))
                if input_gradient:
                    self.gradients[worker] |= {(stage.first, sample) for sample in _samples(stage.rows)}
            case Sum(block, parts):
                rows = [part if isinstance(part, Rows) else part.rows for part in parts]
                assert [sample for part in rows for sample in _samples(part)] == list(
                    range(self.placement.batch_size)
                ), "the parts are in the order of their samples and make up the batch"
            case Norms(blocks):
                assert not self.model.scaled or worker in self.scaled
                for block in blocks:
                    assert self.parts[worker, block] == set(range(self.placement.batch_size)), "of the whole batch"
                self.norms[worker] |= set(blocks)
            case Clip():
                learning = {block for block, facts in enumerate(self.model.blocks) if facts.trainable}
                assert self.norms[worker] == learning, "by the norms of all that learns"
                self.clipping.add(worker)
            case Update(block):
                if self.model.updated_together and self.model.blocks[block].trainable:
                    assert worker in self.clipping, "clipped by what all agree on"
                self.updates.append((worker, block))
                self.fresh.add((worker, block))

    def _has(self, worker: str, crossing: Crossing) -> bool:
        here = {(crossing.index, sample) for sample in _samples(crossing.rows)}
        match crossing.cargo:
            case Cargo.FEATURE:
                return here <= self.features[worker]
            case Cargo.ERROR_GRADIENT:
                return here <= self.gradients[worker]
            case Cargo.LABEL:
                return set(_samples(crossing.rows)) <= self.labels[worker]
            case Cargo.WEIGHT_GRADIENT:
                learns = self.model.blocks[crossing.index].trainable
                return not learns or set(_samples(crossing.rows)) <= self.parts[worker, crossing.index]
            case Cargo.WEIGHTS:
                return (worker, crossing.index) in self.fresh
            case Cargo.NORMS:
                return set(crossing.slots) <= self.norms[worker]
            case Cargo.COEFFICIENT:
                return worker in self.clipping
            case Cargo.SCALE:
                return worker in self.scaled

    def _take(self, worker: str, crossing: Crossing) -> None:
        here = {(crossing.index, sample) for sample in _samples(crossing.rows)}
        match crossing.cargo:
            case Cargo.FEATURE:
                self.features[worker] |= here
            case Cargo.ERROR_GRADIENT:
                self.gradients[worker] |= here
            case Cargo.LABEL:
                self.labels[worker] |= set(_samples(crossing.rows))
            case Cargo.WEIGHT_GRADIENT:
                self.parts[worker, crossing.index] |= set(_samples(crossing.rows))
            case Cargo.NORMS:
                self.norms[worker] |= set(crossing.slots)
            case Cargo.COEFFICIENT:
                self.clipping.add(worker)
            case Cargo.SCALE:
                self.scaled.add(worker)
            case Cargo.WEIGHTS:
                self.fresh.add((worker, crossing.index))


def _samples(rows: Rows) -> list[int]:
    return list(range(rows.begin, rows.end))
