"""One process that runs the tiles of a placement: what sessions of any placement are compared with, bit for bit.

Autograd goes through the whole batch at once. A shared block is copied for each of its parts; the parts' gradients are added
from left to right, and their buffers averaged.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from edge_agent import EdgeConfig
from edge_agent.experiment.building import Experiment
from shared.model.chain import Chain
from shared.model.random_state import random_state
from shared.placement import Placement, Rows
from shared.training.recipe import Recipe
from tests.support.plain import plain_optimizer, plain_update


def plain_tiles_state(config: EdgeConfig) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, its tiles run by one process."""
    experiment = Experiment(config)
    tiles = plain_tiles(experiment.chain, experiment.placement, experiment.recipe)
    for batch in experiment.loader.iterate(0, experiment.steps):
        tiles.step(batch.step, batch.inputs, batch.labels)
    return {name: value.clone() for name, value in experiment.chain.module.state_dict().items()}


def plain_tiles(chain: Chain, placement: Placement, recipe: Recipe) -> "PlainTiles":
    """One process that trains the blocks of a chain in place."""
    parameters = [block.named_parameters().values() for block in chain.blocks]
    return PlainTiles([block.module for block in chain.blocks], placement, recipe, parameters)


class PlainTiles:
    """Blocks that one process trains; `blocks` have the weights."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        placement: Placement,
        recipe: Recipe,
        parameters: Sequence[Iterable[nn.Parameter]] = (),
    ) -> None:
        """parameters: of each block, in the order in which clipping adds up their norms; left out, in the block's own."""
        self.blocks = nn.ModuleList(blocks).train()
        self._parameters = [list(each) for each in parameters or [block.parameters() for block in self.blocks]]
        self._placement, self._recipe = placement, recipe
        self._optimizers = [
            plain_optimizer(block, recipe.optimizer) if any(p.requires_grad for p in block.parameters()) else None
            for block in self.blocks
        ]

    def change(self, placement: Placement) -> None:
        """Run other tiles from now on."""
        self._placement = placement

    def step(self, step: int, inputs: Tensor, labels: Tensor) -> float:
        """Train on one batch; returns its mean loss."""
        samples, feature = len(labels), inputs
        copies: list[list[tuple[Rows, nn.Module]]] = []
        for index, block in enumerate(self.blocks):
            tiles = self._placement.holders(index)
            rows = [tile.rows.scaled(samples, self._placement.batch_size) for tile in tiles]
            copies.append([(part, block if len(tiles) == 1 else copy.deepcopy(block)) for part in rows if part.count])
            # Random numbers of a part follow from its first sample in a whole batch.
            begins = [tile.rows.begin for tile, part in zip(tiles, rows, strict=True) if part.count]
            outputs = []
            for begin, (part, module) in zip(begins, copies[-1], strict=True):
                with random_state(self._recipe.seed, step, index, *([begin] if begin else [])):
                    outputs.append(module(feature[part.begin : part.end].clone()))
            feature = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        total = self._loss(feature, labels)
        if total.requires_grad:
            total.backward()
        with torch.no_grad():
            for index, parts in enumerate(copies):
                if len(self._placement.holders(index)) > 1:
                    self._join(index, parts)
                if (optimizer := self._optimizers[index]) is not None:
                    plain_update([self._parameters[index]], optimizer, self._recipe, step)
        return float(total.detach())

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        samples = len(labels)
        last = self._placement.holders(len(self.blocks) - 1)
        heads = [tile.rows.scaled(samples, self._placement.batch_size) for tile in last]
        losses = [
            nn.functional.cross_entropy(outputs[head.begin : head.end], labels[head.begin : head.end])
            * (head.count / samples)
            for head in heads
            if head.count
        ]
        return torch.stack(losses).sum()

    def _join(self, index: int, parts: Sequence[tuple[Rows, nn.Module]]) -> None:
        whole = self.blocks[index]
        for name, parameter in whole.named_parameters():
            found = [grad for _, part in parts if (grad := part.get_parameter(name).grad) is not None]
            parameter.grad = None
            if found:
                parameter.grad = found[0].clone()
                for grad in found[1:]:
                    parameter.grad = parameter.grad + grad
        for name, buffer in whole.named_buffers():
            values = [(part.get_buffer(name), rows.count) for rows, part in parts]
            mean = values[0][0]
            if buffer.is_floating_point() and len(values) > 1:
                total = sum(value.double() * count for value, count in values)
                mean = (total / sum(count for _, count in values)).to(buffer.dtype)
            buffer.copy_(mean)
