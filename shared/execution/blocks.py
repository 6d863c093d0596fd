"""The blocks of one worker under one placement: its stages with their backward policies, and the loss. Computes, no more.

Called from the compute thread, operation by operation, in an order that `steps` sees to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.execution.shared_blocks import BlockPart, WeightedPart, part_of, summed, weights_of
from shared.model.chain import Chain
from shared.model.features import Features, Gradients
from shared.placement import ModelFacts, Placement, Tile, held_blocks, stages
from shared.training import block_state
from shared.training.losses import BatchLoss, LossHead
from shared.training.policies import POLICIES, BackwardPolicy, Replay
from shared.training.recipe import Recipe
from shared.training.stage import BlockGradients, Stage


@dataclass(frozen=True, slots=True)
class Method:
    """How every worker of a session trains its blocks."""

    recipe: Recipe
    head: LossHead
    backward: str
    """The policy of stages that wait for their error gradient, one of `POLICIES`."""
    device: torch.device


class PlacedBlocks:
    """What one worker computes with. A block that it shares is a copy of its own."""

    def __init__(self, chain: Chain, placement: Placement, model: ModelFacts, worker: str, method: Method) -> None:
        self.chain = chain
        self._method = method
        self._stages: dict[Tile, tuple[Stage, BackwardPolicy]] = {}
        self._holder: dict[int, Stage] = {}
        for tile in stages(placement, worker):
            stage = self._stage(tile.first, tile.stop, tile.rows.begin)
            # From the last block the way goes straight back, so nothing changes the weights before.
            policy_class = Replay if tile.stop == placement.blocks else POLICIES[method.backward]
            policy = policy_class(stage, input_gradient=model.learns_below(tile.first))
            self._stages[tile] = stage, policy
            self._holder |= dict.fromkeys(tile.blocks, stage)
        for block in held_blocks(placement, worker):
            if block not in self._holder:  # it is owned, and run by others
                self._holder[block] = self._stage(block, block + 1, 0)

    def forward(self, step: int, tile: Tile, inputs: Features, *, weights_stay: bool) -> Features:
        """Run a stage; what its backward needs is kept. weights_stay: until then they change no more."""
        return self._stages[tile][1].forward(step, inputs, weights_stay=weights_stay)

    def backward(self, step: int, tile: Tile, gradients: Gradients) -> tuple[Gradients, dict[int, BlockGradients]]:
        """Error gradients at a stage's inputs, and its blocks' gradients; `gradients` are at what `forward` returned."""
        stage, policy = self._stages[tile]
        at_inputs = policy.backward(step, gradients)
        return at_inputs, stage.take_gradients()

    def loss(self, outputs: Features, labels: Tensor, share: float) -> tuple[BatchLoss, Features]:
        """The loss of a part of the batch and its error gradient; see `LossHead.gradient`."""
        return self._method.head.gradient(outputs, labels, share)

    def evaluate(self, tile: Tile, inputs: Features) -> Features:
        """Run a stage in evaluation mode."""
        return self._stages[tile][0].evaluate(inputs)

    def judge(self, outputs: Features, labels: Tensor) -> BatchLoss:
        """The loss alone."""
        return self._method.head.evaluate(outputs, labels)

    def part(self, block: int, gradient: BlockGradients) -> BlockPart:
        """This worker's part of a shared block."""
        return part_of(self.chain.blocks[block], gradient)

    def sum(self, block: int, parts: Sequence[WeightedPart]) -> BlockGradients:
        """The gradient of a shared block, from all parts in the order of their samples; its buffers follow."""
        with torch.no_grad():
            return summed(self.chain.blocks[block], parts)

    def update(self, step: int, block: int, gradient: BlockGradients) -> None:
        """Apply the gradient of a block."""
        self._holder[block].update_block(block, step, gradient)

    def weights(self, block: int) -> block_state.BlockTensors:
        """A copy of a block's parameters and buffers, for those that share it."""
        return weights_of(self.chain.blocks[block])

    def take_weights(self, block: int, tensors: block_state.BlockTensors) -> None:
        """Go on with what a block's owner has sent."""
        self._holder[block].take_weights(block, tensors)

    def _stage(self, first: int, stop: int, first_sample: int) -> Stage:
        method = self._method
        return Stage(self.chain, first, stop, method.recipe, method.device, first_sample=first_sample)
