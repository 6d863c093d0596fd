"""The blocks of one worker under one placement: its stages with their backward policies, and the loss. Computes, no more.

Called from the compute thread, operation by operation, in an order that `steps` sees to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.codec import FeedbackMode
from shared.execution.failures import translate_loss_failures
from shared.execution.shared_blocks import BlockPart, WeightedPart, part_of, summed, weights_of
from shared.model.features import Features, Gradients
from shared.placement import ModelFacts, Placement, Tile, stages
from shared.training import block_state
from shared.training.held_blocks import BlockGradients, HeldBlocks
from shared.training.losses import BatchLoss, LossHead, widened
from shared.training.policies import BackwardPolicy, policy_of_stage
from shared.training.stage import Stage


@dataclass(frozen=True, slots=True)
class Method:
    """How the blocks of a session are trained, beside their recipe."""

    head: LossHead
    backward: str = "replay"
    """The policy of stages that wait for their error gradient, one of `POLICIES`."""
    feedback: FeedbackMode = FeedbackMode.BATCH
    """What is given back to error gradients of what codecs took from features."""


class PlacedBlocks:
    """What one worker computes with. A block that it shares is a copy of its own."""

    def __init__(self, held: HeldBlocks, placement: Placement, model: ModelFacts, worker: str, method: Method) -> None:
        """held: those of `held_blocks` for this worker."""
        self.held = held
        self.worker = worker
        self.feedback = method.feedback
        self._model = model
        self._head = method.head
        self.passes_no_gradient = False
        """Whether a stage has passed no gradient on to its inputs in some step, though blocks before it learn."""
        self._stages: dict[Tile, tuple[Stage, BackwardPolicy]] = {}
        for tile in stages(placement, worker):
            stage = Stage(held, tile.first, tile.stop, first_sample=tile.rows.begin)
            ends_model = tile.stop == placement.blocks
            policy_class = policy_of_stage(method.backward, placement.staleness, ends_model=ends_model)
            policy = policy_class(stage, input_gradient=model.learns_below(tile.first))
            self._stages[tile] = stage, policy

    def forward(self, step: int, tile: Tile, inputs: Features) -> Features:
        """Run a stage; what its backward needs is kept."""
        return self._stages[tile][1].forward(step, inputs)

    def backward(self, step: int, tile: Tile, gradients: Gradients) -> tuple[Gradients, dict[int, BlockGradients]]:
        """Error gradients at a stage's inputs, and its blocks' gradients; `gradients` are at what `forward` returned."""
        return self._answered(tile, self._stages[tile][1].backward(step, gradients))

    def _answered(self, tile: Tile, at_inputs: Gradients) -> tuple[Gradients, dict[int, BlockGradients]]:
        if all(gradient is None for gradient in at_inputs) and self._model.learns_below(tile.first):
            self.passes_no_gradient = True
        return at_inputs, self.held.take_gradients(tile.blocks)

    def learn(
        self, step: int, tile: Tile, inputs: Features, labels: Tensor, share: float
    ) -> tuple[BatchLoss, Gradients, dict[int, BlockGradients]]:
        """The stage that ends with the model: forward, loss and backward in one graph; see `loss` and `backward`."""
        stage, labels = self._stages[tile][0], widened(labels)
        graph = stage.forward(step, inputs, input_gradient=self._model.learns_below(tile.first))
        with translate_loss_failures(self.held.recipe.loss, graph.outputs, labels):
            computed = self._head.compute(graph.outputs, labels, share)
        at_inputs, of_blocks = self._answered(tile, stage.backward_from(graph, computed.root))
        return computed.read(), at_inputs, of_blocks

    def loss(self, outputs: Features, labels: Tensor, share: float) -> tuple[BatchLoss, Features]:
        """The loss of a part of the batch and its error gradient; see `LossHead.gradient`."""
        labels = widened(labels)
        with translate_loss_failures(self.held.recipe.loss, outputs, labels):
            return self._head.gradient(outputs, labels, share)

    def evaluate(self, tile: Tile, inputs: Features) -> Features:
        """Run a stage in evaluation mode."""
        return self._stages[tile][0].evaluate(inputs)

    def judge(self, outputs: Features, labels: Tensor) -> BatchLoss:
        """The loss alone."""
        labels = widened(labels)
        with translate_loss_failures(self.held.recipe.loss, outputs, labels):
            return self._head.evaluate(outputs, labels)

    def part(self, block: int, gradient: BlockGradients) -> BlockPart:
        """This worker's part of a shared block."""
        return part_of(self.held.chain.blocks[block], gradient)

    def sum(self, block: int, parts: Sequence[WeightedPart]) -> BlockGradients:
        """The gradient of a shared block, from all parts in the order of their samples; its buffers follow."""
        with torch.no_grad():
            return summed(self.held.chain.blocks[block], parts)

    def update(self, step: int, gradients: Mapping[int, BlockGradients]) -> None:
        """Apply the gradients of blocks."""
        self.held.apply(gradients, step)

    def weights(self, block: int) -> block_state.BlockTensors:
        """A copy of a block's parameters and buffers, for those that share it."""
        return weights_of(self.held.chain.blocks[block])

    def take_weights(self, block: int, tensors: block_state.BlockTensors) -> None:
        """Go on with what a block's owner has sent."""
        self.held.take_weights(block, tensors)
