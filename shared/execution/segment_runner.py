"""The computation of one worker's segments: it takes what has come, runs the operations, and makes what is sent.

Called from the compute thread, segment by segment, in the order that `StepScheduler` sees to.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from shared.execution.blocks import PlacedBlocks
from shared.execution.crossing_types import CrossingTypes
from shared.execution.planned_segments import Learn, PlannedSegment, Sends, Updates
from shared.execution.shared_blocks import BlockPart, CodedWeights, WeightedPart
from shared.execution.step_in_flight import Load, Parcel, StepInFlight
from shared.execution.step_tensors import Piece, StepTensors, gathered, rows_within
from shared.model.features import Features, Gradients, Slots, features_of
from shared.placement import (
    GROUP,
    Backward,
    BlockSlice,
    Cargo,
    Clip,
    Crossing,
    Forward,
    Loss,
    Norms,
    Recall,
    Route,
    Rows,
    StepPlan,
    Sum,
    Tile,
)
from shared.registry import codec_spec
from shared.training.clipping import SKIP
from shared.training.held_blocks import BlockGradients
from shared.training.loss_scale import LossScale


class SegmentRunner:
    """The operations of one worker under one placement. Belongs to one thread."""

    def __init__(self, plan: StepPlan, blocks: PlacedBlocks, own_scale: LossScale | None) -> None:
        """own_scale: of the loss, where this worker tells it to the others."""
        self._plan = plan
        self._blocks = blocks
        self._own_scale = own_scale
        self._batch_size = plan.placement.batch_size
        self._recalls, self._counts_labels = plan.recalls, plan.counts_labels
        chain, recipe = blocks.held.chain, blocks.held.recipe
        self._types = CrossingTypes(chain, recipe, plan.placement)
        self._types_may_differ = bool(chain.types) or recipe.base_precision != "fp32"
        """True if a tensor may have another type than it crosses in."""

    def add_samples(self, state: StepInFlight, source: Rows, inputs: Slots, labels: Features) -> None:
        """Take this worker's own samples of a step. source: their rows in a whole batch."""
        rows = source.scaled(state.samples, self._batch_size)
        state.tensors.add_feature(0, rows, inputs)
        state.labels.append(tuple(Piece(rows, one) for one in labels))

    def run(self, state: StepInFlight, segment: PlannedSegment, arrived: Mapping[int, Parcel]) -> list[Parcel]:
        """Run one segment of a step. arrived: all that it receives, by place. Returns its sends."""
        for _, parcel in sorted(arrived.items()):
            self._use_arrival(state, parcel.crossing, parcel.load)
        for operation in segment.computed:
            match operation:
                case Updates(blocks, at_once):
                    taken = {} if at_once else {block: state.block_gradients.pop(block, {}) for block in blocks}
                    self._blocks.update(state.step, blocks, taken, state.coefficient, state.rate_drops)
                case Norms(blocks):
                    self._measure(state, blocks)
                case Clip():
                    self._clip(state)
                case Recall(stage):
                    self._recall(state, stage)
                case Learn(stage, updates_follow) if rows := self._rows(stage.rows, state):
                    self._learn(state, stage, rows)
                    if not updates_follow:
                        _keep(state, self._blocks.held.take_gradients(stage.blocks))
                case Forward(stage) if rows := self._rows(stage.rows, state):
                    inputs = state.tensors.inputs(stage, rows)
                    outputs = (
                        self._blocks.forward(state.step, stage, inputs)
                        if self._plan.training
                        else self._blocks.evaluate(stage, inputs)
                    )
                    state.tensors.add_outputs(stage, rows, outputs)
                case Loss(whole) if not self._plan.training:
                    self._judge(state, whole)
                case Loss(whole) if rows := self._rows(whole, state):
                    self._compute_loss(state, rows)
                case Backward(stage, _) if rows := self._rows(stage.rows, state):
                    gradients = state.tensors.at_outputs(stage, rows)
                    at_inputs, of_blocks = self._blocks.backward(state.step, stage, gradients)
                    self._add_input_gradients(state, stage, rows, at_inputs)
                    _keep(state, of_blocks)
                case Sum(block, parts):
                    weighted = list(self._weighted(state, block, parts))
                    state.block_gradients[block] = self._blocks.sum(block, weighted)
        return self.sent(state, segment.sends) if segment.sends else []

    def _use_arrival(self, state: StepInFlight, crossing: Crossing, load: Load) -> None:
        if not isinstance(load, tuple):
            self._use_of_block(state, crossing, load)
            return
        rows = crossing.rows.scaled(state.samples, self._batch_size)
        match crossing.cargo:
            case (Cargo.FEATURE | Cargo.LABEL) as cargo if self._recalls:
                state.fresh[cargo] = load
            case Cargo.FEATURE:
                state.tensors.add_feature(crossing.index, rows, load)
            case Cargo.ERROR_GRADIENT:
                for slot in crossing.slots:
                    state.tensors.add_gradient(crossing.index, crossing.at, slot, Piece(rows, load[slot]))
            case Cargo.LABEL:
                if self._counts_labels:
                    load, state.counts = load[:-1], load[-1]
                state.labels.append(tuple(Piece(rows, one) for one in load))
            case Cargo.NORMS if load[0] is not None:
                state.norms |= self._blocks.clipping.parted(crossing.slots, load[0])
            case Cargo.COEFFICIENT:
                state.coefficient = load[0]
            case Cargo.SCALE if load[0] is not None:
                state.scale = float(load[0])

    def _use_of_block(self, state: StepInFlight, crossing: Crossing, load: BlockPart | CodedWeights) -> None:
        if isinstance(load, CodedWeights) or crossing.cargo is Cargo.WEIGHTS:
            weights = load.weights if isinstance(load, CodedWeights) else load
            self._blocks.take_weights(crossing.of_block, weights)
            if crossing.sender == GROUP:
                state.merged[crossing.of_block] = load
        elif self._plan.model.merged:
            state.given[crossing.of_block] = load
        else:
            state.parts[crossing.index, crossing.rows.begin] = load

    def _recall(self, state: StepInFlight, stage: Tile) -> None:
        if not state.fresh:  # the stage before has made them here, and hands them on as it would send them
            slots = self._plan.model.read_slots(stage.first, stage.stop)
            for cargo in (Cargo.FEATURE, Cargo.LABEL):
                load = self._load(state, Crossing(stage.worker, stage.worker, cargo, stage.first, stage.rows, slots))
                assert isinstance(load, tuple), "both are a tensor a slot"
                state.fresh[cargo] = load
            state.tensors, state.labels, state.samples = StepTensors(self._plan.model), [], state.batch_samples
        *labels, numbers = features_of(state.fresh.pop(Cargo.LABEL))
        assert self._blocks.recalled is not None, "there is one wherever a program recalls"
        features, of_all = self._blocks.recalled.take(numbers, state.fresh.pop(Cargo.FEATURE), tuple(labels))
        rows = stage.rows.scaled(state.samples, self._batch_size)
        state.tensors.add_feature(stage.first, rows, features)
        state.labels.append(tuple(Piece(rows, one) for one in of_all))

    def _measure(self, state: StepInFlight, blocks: tuple[int, ...]) -> None:
        held, taken = self._blocks.held, {block: state.block_gradients.pop(block, {}) for block in blocks}
        assert state.scale is not None or not held.recipe.is_scaled, "the scale comes before the norms"
        held.put_back(taken)
        gradients, norms = held.measure(taken, state.step, state.scale)
        state.block_gradients |= gradients
        state.norms |= norms

    def _clip(self, state: StepInFlight) -> None:
        state.coefficient = self._blocks.clipping.coefficient(state.norms)
        if self._own_scale is not None and self._blocks.held.recipe.updates_after(state.step):
            assert state.scale is not None, "it is known since the step has begun"
            self._own_scale.note(state.step, state.scale, overflowed=float(state.coefficient) == SKIP)

    def _add_input_gradients(self, state: StepInFlight, stage: Tile, rows: Rows, at_inputs: Gradients) -> None:
        for slot, _, at, whole in self._plan.answers[stage]:
            if part := self._rows(whole, state):
                piece = rows_within(Piece(rows, at_inputs[slot]), part)
                state.tensors.add_gradient(stage.first, at, slot, piece)

    def _learn(self, state: StepInFlight, stage: Tile, rows: Rows) -> None:
        inputs, labels = state.tensors.inputs(stage, rows), self._labels(state, rows)
        share = rows.count / state.samples
        state.loss, at_inputs = self._blocks.learn(state.step, stage, inputs, labels, share, state.scale, state.counts)
        self._add_input_gradients(state, stage, rows, at_inputs)

    def _judge(self, state: StepInFlight, whole: Rows) -> None:
        if rows := self._rows(whole, state):
            state.loss = self._blocks.evaluate_loss(state.tensors.outputs(rows), self._labels(state, rows))
        self._blocks.note_judged(state.step)

    def _compute_loss(self, state: StepInFlight, rows: Rows) -> None:
        outputs, labels = state.tensors.outputs(rows), self._labels(state, rows)
        share = rows.count / state.samples
        state.loss, gradients = self._blocks.loss(outputs, labels, share, state.scale, state.counts)
        last = self._plan.placement.blocks
        state.tensors.add_gradient(last, last, 0, Piece(rows, gradients[0]))

    def _labels(self, state: StepInFlight, rows: Rows) -> Features:
        labels: list[Tensor] = []
        for pieces in zip(*state.labels, strict=True):
            tensor = gathered(pieces, rows)
            assert tensor is not None, "labels are there"
            labels.append(tensor)
        return tuple(labels)

    def _weighted(self, state: StepInFlight, block: int, parts: tuple[Crossing | Rows, ...]) -> Iterator[WeightedPart]:
        for part in parts:
            whole = part if isinstance(part, Rows) else part.rows
            if rows := self._rows(whole, state):
                of_part = (
                    self._blocks.part(BlockSlice(block), state.block_gradients.pop(block, {}))
                    if isinstance(part, Rows)
                    else state.parts.pop((block, part.rows.begin))
                )
                yield WeightedPart(of_part, rows.count)

    def sent(self, state: StepInFlight, sends: Sends) -> list[Parcel]:
        """Make what a step sends."""
        parcels = []
        for crossing, place in sends:
            load = self._load(state, crossing)
            parcel = Parcel(
                state.step,
                state.batch_samples,
                crossing,
                load,
                place,
                state.scale,
                state.numbers,
                rate_drops=state.rate_drops,
                label_count=state.label_count,
            )
            parcels.append(parcel)
        return parcels

    def _load(self, state: StepInFlight, crossing: Crossing) -> Load:
        rows = self._rows(crossing.rows, state)
        match crossing.cargo:
            case Cargo.FEATURE if rows is not None:
                feature = state.tensors.feature(crossing.index, rows, crossing.slots)
                return self._typed(feature, crossing) if self._types_may_differ else feature
            case Cargo.FEATURE:
                # Something goes in every step, so that every worker knows of it: of a part without samples, an empty tensor.
                kinds = enumerate(self._types.specs(crossing.index))
                return tuple(spec.zeros(0) if slot in crossing.slots else None for slot, spec in kinds)
            case Cargo.LABEL:
                labels = _none_of(state.labels[0]) if rows is None else self._labels(state, rows)
                if self._counts_labels:
                    return (*labels, state.counts)
                return (*labels, state.numbers) if self._recalls else labels
            case Cargo.ERROR_GRADIENT:
                if rows is None:
                    return (None,) * len(self._types.specs(crossing.index))
                return self._sent_gradient(state, crossing, rows)
            case Cargo.WEIGHT_GRADIENT:
                return {} if rows is None else self._part(state, crossing.of_block)
            case Cargo.WEIGHTS:
                one = crossing.of_block
                return state.merged.pop(one, None) or self._blocks.weights(one)
            case Cargo.NORMS:
                return (torch.cat([state.norms[block] for block in crossing.slots]),)
            case Cargo.COEFFICIENT:
                return (state.coefficient,)
            case Cargo.SCALE:
                return (torch.tensor([state.scale], dtype=torch.float64),)

    def _part(self, state: StepInFlight, one: BlockSlice) -> BlockPart:
        """Take the part of a slice: what a member has sent of it, or else this worker's own."""
        if (given := state.given.pop(one, None)) is not None:
            return given
        is_last = one.number + 1 == self._plan.model.blocks[one.block].slices
        gradients = state.block_gradients
        of_block = gradients.pop(one.block, {}) if is_last else gradients.get(one.block, {})
        return self._blocks.part(one, of_block)

    def _sent_gradient(self, state: StepInFlight, crossing: Crossing, rows: Rows) -> Gradients:
        gradients = state.tensors.sent_gradient(crossing, rows)
        if self._types_may_differ:
            gradients = self._typed(gradients, crossing)
        if state.scale is None:
            return gradients
        codec = self._plan.placement.codecs.get(Route(crossing.sender, crossing.receiver, crossing.cargo), "raw")
        if not codec_spec(codec).lossy:
            return gradients
        # A lossy codec makes an infinity finite, and what overflows would be hidden; of NaN it tells.
        return tuple(
            gradient if gradient is None else gradient.masked_fill(gradient.isinf(), math.nan) for gradient in gradients
        )

    def _typed(self, tensors: Slots, crossing: Crossing) -> Slots:
        """The tensors in the types in which they cross."""
        return tuple(
            tensor if tensor is None or tensor.dtype is spec.dtype else tensor.to(spec.dtype)
            for tensor, spec in zip(tensors, self._types.specs(crossing.index), strict=True)
        )

    def _rows(self, rows: Rows, state: StepInFlight) -> Rows | None:
        """The rows of this batch, which are all of a whole one; None where a short one leaves none."""
        if state.samples == self._batch_size:
            return rows
        scaled = rows.scaled(state.samples, self._batch_size)
        return scaled if scaled.end > scaled.begin else None


def _keep(state: StepInFlight, of_blocks: Mapping[int, BlockGradients]) -> None:
    """Keep gradients of blocks for their update. Two stages may have one of the same parameter, the later one first."""
    for block, gradients in of_blocks.items():
        kept = state.block_gradients.setdefault(block, {})
        for name, gradient in gradients.items():
            kept[name] = kept[name] + gradient if name in kept else gradient


def _none_of(labels: tuple[Piece, ...]) -> Features:
    """Empty tensors of the kinds that labels have, for a part without samples."""
    return tuple(one.tensor[:0] for one in labels if one.tensor is not None)
