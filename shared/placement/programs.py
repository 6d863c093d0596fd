"""Programs: the work of each worker in one step, as data. The runtime executes it; the simulator and the cost model read it.

A program lists operations in an order in which they can be done one after the other. Every dependency between workers
goes from a stage to one that begins at a later block (forward) or an earlier one (backward), and a worker's own stages stand
in that order too, so no two workers wait for each other. A runtime that does an operation as soon as its inputs are there
computes the same.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shared.placement.derived import BlockSlice, Crossing, Flow, from_group, held_blocks, loss_rows, stages, to_group
from shared.placement.facts import ModelFacts
from shared.placement.tiles import Cargo, Placement, Rows, Tile


@dataclass(frozen=True, slots=True)
class Take:
    """Load raw samples `rows` of the batch, and their labels."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Send:
    """Send a crossing. No worker waits for it."""

    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait until a crossing has arrived."""

    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Recall:
    """Keep the features and labels that are new at the input of a stage: those that have come, or that the stage before has
    made. Take those of all samples of the batch."""

    stage: Tile


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the blocks of a stage; its input is complete, in the order of the samples."""

    stage: Tile


@dataclass(frozen=True, slots=True)
class Loss:
    """Compute the loss of `rows` and its gradient at the output."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Backward:
    """Take the error gradient at the output of a stage back to its input; leaves each block's gradient part."""

    stage: Tile
    input_gradient: bool
    """True if anything before the stage learns."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Add the gradient parts of a shared block, left to right in this order, in float32."""

    block: int
    parts: tuple[Crossing | Rows, ...]
    """Parts by their first sample: a crossing that was received, or the rows of the worker's own part."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Compute the norms of the gradients of all blocks that this worker owns and that learn."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clip:
    """Compute the coefficient by which all gradients are scaled, or with which the update is skipped, from the norms of all."""


@dataclass(frozen=True, slots=True)
class Update:
    """Clip and apply the gradient of a block that this worker owns."""

    block: int


Operation = Take | Send | Receive | Recall | Forward | Loss | Backward | Sum | Norms | Clip | Update
Program = tuple[Operation, ...]


def programs_of(placement: Placement, model: ModelFacts, flow: Flow, *, training: bool) -> dict[str, Program]:
    """Write each worker's program for one step of a valid placement; empty where it has no part in it.

    training: False evaluates a batch: no more than the way forward, to the loss.
    """
    writer = _Writer(placement, model, flow)
    return {worker: tuple(writer.operations(worker, training=training)) for worker in placement.workers}


class _Writer:
    """A writer of one placement's programs. Crossings are sorted once, by their workers and their block."""

    def __init__(self, placement: Placement, model: ModelFacts, flow: Flow) -> None:
        self._placement = placement
        self._model = model
        self._sends: Mapping[tuple[str, Cargo, int], list[Send]] = defaultdict(list)
        """By sender and cargo, and by the block behind which it is sent: a feature by the last that made any of it."""
        self._receives: Mapping[tuple[str, Cargo, int], list[Receive]] = defaultdict(list)
        """By receiver and cargo, and by the block that waits for it, or behind the stage that takes an error gradient."""
        for one in flow.everything:
            is_feature = one.cargo is Cargo.FEATURE
            sent = max(model.value(one.index, slot).feature for slot in one.slots) if is_feature else one.index
            received = one.at if one.cargo is Cargo.ERROR_GRADIENT else one.index
            self._sends[one.sender, one.cargo, sent].append(Send(one))
            self._receives[one.receiver, one.cargo, received].append(Receive(one))

    def operations(self, worker: str, *, training: bool) -> Iterator[Operation]:
        last = self._placement.blocks
        for source in self._placement.sources:
            if source.worker == worker:
                yield Take(source.rows)
        yield from self._received(worker, Cargo.SCALE, 0)
        yield from self._sent(worker, Cargo.SCALE, 0)
        # The loss is computed last: its labels go first, beside the first feature.
        yield from self._sent(worker, Cargo.LABEL, last)
        yield from self._sent(worker, Cargo.FEATURE, 0)
        own = stages(self._placement, worker, self._model)
        for stage in own:
            yield from self._received(worker, Cargo.FEATURE, stage.first)
            if stage.stop == last:  # so that nothing is waited for between the last block and its backward
                yield from self._received(worker, Cargo.LABEL, last)
                if training and self._model.recalls:
                    yield Recall(stage)
            yield Forward(stage)
            for block in stage.blocks:
                yield from self._sent(worker, Cargo.FEATURE, block + 1)
        if (rows := loss_rows(self._placement, worker)) is not None:
            yield Loss(rows)
        if training:
            yield from self._way_back(worker, own)
            yield from self._updates(worker)

    def _way_back(self, worker: str, own: tuple[Tile, ...]) -> Iterator[Operation]:
        updated, due = self._updated_behind(worker, own), list[int]()
        for number, stage in reversed([*enumerate(own)]):
            if self._model.answered_slots(stage.first, stage.stop):  # else the forward has left its part, the buffers
                if received := self._received(worker, Cargo.ERROR_GRADIENT, stage.stop):
                    yield from map(Update, due)  # before it waits, and behind what others wait for
                    yield from received
                    due.clear()
                yield Backward(stage, input_gradient=self._model.wants_input_gradient(stage.first, stage.stop))
                yield from self._sent(worker, Cargo.ERROR_GRADIENT, stage.first)
            yield from self._sent(worker, Cargo.WEIGHT_GRADIENT, stage.first)
            due += updated[number]
        yield from map(Update, due)

    def _updated_behind(self, worker: str, own: tuple[Tile, ...]) -> Mapping[int, list[int]]:
        """By number of a stage, the blocks of which no gradient comes after its backward. Their updates do not wait for the
        gradients of earlier stages, which may come late."""
        first: dict[int, int] = {}
        for number, stage in enumerate(own):
            for block in stage.blocks:
                first.setdefault(block, number)
        for group in self._model.together:
            if group[0] in first:
                first |= dict.fromkeys(group, min(first[block] for block in group))
        updated: Mapping[int, list[int]] = defaultdict(list)
        for block in sorted(first, reverse=True):
            if self._is_updated_by(worker, block) and not self._waits(block):
                updated[first[block]].append(block)
        return updated

    def _is_updated_by(self, worker: str, block: int) -> bool:
        return self._placement.owner(block) == worker and self._model.blocks[block].changes

    def _waits(self, block: int) -> bool:
        """Tell whether the update of a block waits for more than its own gradient here."""
        model = self._model
        together = model.updated_together and model.blocks[block].trainable
        return block in self._placement.shared_blocks or model.merged or together

    def _updates(self, worker: str) -> Iterator[Operation]:
        """Updates that wait for more than the way back, and the new weights of shared blocks."""
        placement, held = self._placement, held_blocks(self._placement, worker)
        clipped_later: list[int] = []
        merged: list[BlockSlice] = []
        for block in reversed(held):
            facts = self._model.blocks[block]
            if not self._is_updated_by(worker, block) or not self._waits(block):
                continue
            parts = self._received(worker, Cargo.WEIGHT_GRADIENT, block)
            if self._model.merged:
                pushed = {part.crossing.of_block: part for part in parts}
                for one in (BlockSlice(block, number) for number in range(facts.slices)):
                    if one in pushed:
                        yield pushed[one]
                    yield Send(to_group(placement, one))
                    merged.append(one)
                continue
            yield from parts
            if parts:
                own = [tile.rows for tile in placement.holders(block) if tile.worker == worker]
                of_others = [part.crossing for part in parts]
                yield Sum(block, tuple(sorted([*of_others, *own], key=_first_sample)))
            if self._model.updated_together and facts.trainable:
                clipped_later.append(block)
                continue
            yield Update(block)
            yield from self._sent(worker, Cargo.WEIGHTS, block)
        yield from self._clipped(worker, clipped_later)
        for block in clipped_later:
            yield Update(block)
            yield from self._sent(worker, Cargo.WEIGHTS, block)
        for one in merged:  # the group has updated it
            yield Receive(from_group(placement, one))
            sent = self._sent(worker, Cargo.WEIGHTS, one.block)
            yield from (each for each in sent if each.crossing.of_block == one)
        for block in held:
            yield from self._received(worker, Cargo.WEIGHTS, block)

    def _clipped(self, worker: str, blocks: list[int]) -> Iterator[Operation]:
        """The exchange with the owners of other blocks, before any block is updated."""
        from_others, to_others = (
            self._received(worker, Cargo.NORMS, 0),
            self._sent(worker, Cargo.COEFFICIENT, 0),
        )
        if blocks:
            yield Norms(tuple(blocks))
        yield from from_others
        if passed_on := self._sent(worker, Cargo.NORMS, 0):
            yield from passed_on
            yield from self._received(worker, Cargo.COEFFICIENT, 0)
        elif blocks or from_others:
            yield Clip()
        yield from to_others

    def _sent(self, worker: str, cargo: Cargo, index: int) -> list[Send]:
        return self._sends.get((worker, cargo, index), [])

    def _received(self, worker: str, cargo: Cargo, index: int) -> list[Receive]:
        return self._receives.get((worker, cargo, index), [])


def _first_sample(part: Crossing | Rows) -> int:
    return part.begin if isinstance(part, Rows) else part.rows.begin
