"""The blocks of one worker under one placement: its stages with their backward policies, and the loss. Computes, no more.

Called from the compute thread, operation by operation, in the order that `StepScheduler` decides.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shared.codec import FeedbackMode
from shared.execution.block_slices import Slices
from shared.execution.failures import computed_loss
from shared.execution.recalled import Recalled
from shared.execution.shared_blocks import BlockPart, WeightedPart, added, part_of, summed, weights_of
from shared.model.features import Features, Gradients, Slots, features_of
from shared.placement import BlockSlice, StepPlan, Tile, Update, stages
from shared.training import block_state
from shared.training.clipping import Clipping
from shared.training.held_blocks import BlockGradients, HeldBlocks
from shared.training.losses import BatchLoss, LossHead, widened
from shared.training.metrics import Judged, Metrics, Tally
from shared.training.policies import BackwardPolicy, policy_of_stage
from shared.training.precision import computing_in
from shared.training.stage import Stage


@dataclass(frozen=True, slots=True)
class Method:
    """The way in which the blocks of a session are trained, beside their recipe."""

    head: LossHead
    backward: str = "replay"
    """The policy of stages that wait for their error gradient, one of `POLICIES`."""
    feedback: FeedbackMode = FeedbackMode.BATCH
    """Mode of error feedback: the correction of error gradients for the loss of codecs on features."""
    first_sample: int = 0
    """Sample of a group's batch with which this session's batch begins: other members draw other random numbers."""
    metrics: Metrics | None = None
    """Metrics of the evaluations, where there are any."""


class _PlacedStage(NamedTuple):
    stage: Stage
    policy: BackwardPolicy
    input_gradient: bool
    """True if error gradients at its inputs are of use."""


class PlacedBlocks:
    """The blocks with which one worker computes. A block that it shares is a copy of its own."""

    def __init__(
        self,
        held: HeldBlocks,
        plan: StepPlan,
        worker: str,
        method: Method,
        recalled: Recalled | None = None,
        tally: Tally | None = None,
    ) -> None:
        """held: those of `held_blocks` for this worker. recalled: see `recalled`. tally: of an evaluation with metrics."""
        placement, model = plan.placement, plan.model
        self.held = held
        self._slices = Slices(held.chain, held.recipe, merged=model.merged)
        self.worker = worker
        self.recalled = recalled
        """Features that are kept here, where the worker's program recalls any."""
        self.feedback = method.feedback
        self._head = method.head
        self._computing = computing_in(held.precision, held.device)
        self.tally = tally
        """Metrics that count the samples whose loss is computed here, no more."""
        self._judges_alone = len(placement.holders(placement.blocks - 1)) == 1
        self.judged: Judged | None = None
        """Result of the metrics here, once the last step of the evaluation is judged."""
        self.passes_no_gradient = False
        """True once a stage to which a gradient came has passed none on, though blocks before it learn."""
        self._stages: dict[Tile, _PlacedStage] = {}
        self._late = plan.late_blocks
        updates = (one.block for one in plan.program(worker) if isinstance(one, Update))
        places = {block: place for place, block in enumerate(updates)}
        self._last_of: dict[int, list[Stage]] = defaultdict(list)
        """Stages with blocks that are updated late, by that of them which is updated last."""
        for tile in stages(placement, worker, model):
            ends_model = tile.stop == placement.blocks
            policy_class = policy_of_stage(method.backward, placement.staleness, ends_model=ends_model)
            first_sample = method.first_sample + tile.rows.begin
            late = [index for index in tile.blocks if index in self._late and placement.owner(index) == worker]
            stage = Stage(held, tile.first, tile.stop, first_sample=first_sample, late=late)
            input_gradient = model.wants_input_gradient(tile.first, tile.stop)
            policy = policy_class(stage, input_gradient=input_gradient)
            self._stages[tile] = _PlacedStage(stage, policy, input_gradient)
            if stage.late:
                changed = places.keys() & model.used_with(block.index for block in stage.late)
                self._last_of[max(changed, key=places.__getitem__)].append(stage)

    def let_go(self) -> None:
        """Drop the features that are kept for this placement alone."""
        if self.recalled is not None:
            self.recalled.close()

    def forward(self, step: int, tile: Tile, inputs: Slots) -> Slots:
        """Run a stage, and keep what its backward needs."""
        return self._stages[tile].policy.forward(step, inputs)

    def backward(self, step: int, tile: Tile, gradients: Gradients) -> tuple[Gradients, dict[int, BlockGradients]]:
        """Error gradients at a stage's inputs, and its blocks' gradients; `gradients` are at what `forward` returned."""
        placed = self._stages[tile]
        at_inputs = placed.policy.backward(step, gradients)
        if placed.input_gradient and any(gradient is not None for gradient in gradients):
            self._notice(at_inputs)
        return at_inputs, self.held.take_gradients(tile.blocks)

    def _notice(self, at_inputs: Gradients) -> None:
        for gradient in at_inputs:
            if gradient is not None:
                return
        self.passes_no_gradient = True

    def learn(
        self,
        step: int,
        tile: Tile,
        inputs: Slots,
        labels: Features,
        share: float,
        scale: float | None = None,
        counts: Tensor | None = None,
    ) -> tuple[BatchLoss, Gradients]:
        """The stage that ends with the model: forward, loss and backward in one graph; see `loss` and `backward`.

        The blocks' gradients stay where they are, for `update` or `HeldBlocks.take_gradients`.
        """
        (stage, _, input_gradient), labels = self._stages[tile], tuple(map(widened, labels))
        recipe = self.held.recipe
        with stage.predicted():
            graph = stage.forward(step, inputs, input_gradient=input_gradient)
            outputs = features_of(graph.outputs)
            compute = partial(self._head.compute, outputs, labels, share, recipe.accumulate_batches, scale, counts)
            with self._computing():
                computed = computed_loss(compute, recipe.loss, outputs, labels)
            at_inputs = stage.backward_from(graph, computed.root)
        stage.note_begun(step)
        if input_gradient:
            self._notice(at_inputs)
        return computed.read(), at_inputs

    def loss(
        self,
        outputs: Features,
        labels: Features,
        share: float,
        scale: float | None = None,
        counts: Tensor | None = None,
    ) -> tuple[BatchLoss, Gradients]:
        """The loss of a part of the batch and its error gradient; see `LossHead.gradient`."""
        labels = tuple(map(widened, labels))
        recipe = self.held.recipe
        compute = partial(self._head.gradient, outputs, labels, share, recipe.accumulate_batches, scale, counts)
        with self._computing():
            return computed_loss(compute, recipe.loss, outputs, labels)

    def evaluate(self, tile: Tile, inputs: Slots) -> Slots:
        """Run a stage in evaluation mode."""
        return self._stages[tile].stage.evaluate(inputs)

    def evaluate_loss(self, outputs: Features, labels: Features) -> BatchLoss:
        """The loss alone; metrics count the samples."""
        labels = tuple(map(widened, labels))
        with self._computing():
            return computed_loss(
                partial(self._head.evaluate, outputs, labels, self.tally), self.held.recipe.loss, outputs, labels
            )

    def note_judged(self, step: int) -> None:
        """All samples of a step of the evaluation have their loss that have it computed here, and those of the steps before."""
        if self.tally is not None and step == self.tally.last_step:
            self.judged = self.tally.judged(alone=self._judges_alone)

    def part(self, one: BlockSlice, gradient: BlockGradients) -> BlockPart:
        """This worker's part of a slice. gradient: of the block."""
        return part_of(self.held.chain.blocks[one.block], gradient, self._slices[one])

    def sum(self, block: int, parts: Sequence[WeightedPart]) -> BlockGradients:
        """The gradient of a shared block, from all parts in the order of their samples; its buffers follow."""
        with torch.no_grad():
            return summed(self.held.chain.blocks[block], parts)

    @property
    def clipping(self) -> Clipping:
        """Clipping of all blocks together, in a recipe that says so."""
        assert self.held.clipping is not None, "a program has no norms otherwise"
        return self.held.clipping

    def update(
        self,
        step: int,
        blocks: Sequence[int],
        taken: Mapping[int, BlockGradients],
        coefficient: Tensor | None = None,
        rate_drops: int = 0,
    ) -> None:
        """Update blocks by these gradients, or where `taken` has none, by those that `learn` has left in them.

        coefficient: scales gradients that `HeldBlocks.measure` has returned. rate_drops: see `set_rates`.
        """
        self.held.put_back(taken)
        self.held.update(blocks, step, coefficient, rate_drops, self._late)
        for stage in (one for block in blocks for one in self._last_of.get(block, ())):
            stage.note_updated(step)

    def weights(self, one: BlockSlice) -> block_state.BlockTensors:
        """A copy of a slice's parameters and buffers, for those that share its block."""
        return weights_of(self.held.chain.blocks[one.block], self._slices[one])

    def take_weights(self, one: BlockSlice, received: BlockPart) -> None:
        """Continue with the weights from the owner of a block, or with their differences from those that are here."""
        of = self._slices[one]
        self.held.take_weights(one.block, added(self.held.chain.blocks[one.block], received, of), of)
