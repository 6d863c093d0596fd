"""One process that runs the tiles of a placement: what sessions of any placement are compared with, bit for bit.

Where two tiles meet, rows are copied out and joined by `torch.cat`, of features and of error gradients; what has the rows of a
tile already is taken as it is. A shared block is copied for each of its parts; the parts' gradients are added from left to
right, and their buffers averaged.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.model.chain import Chain
from shared.model.random_state import random_state
from shared.placement import Placement, Rows
from shared.training.recipe import Recipe
from tests.support.plain import (
    PlainCounts,
    plain_counts,
    plain_ema,
    plain_optimizer,
    plain_plateau,
    plain_precision,
    plain_scaler,
    plain_update,
)


def plain_tiles_state(
    config: EdgeConfig,
    figures: Mapping[int, float] | None = None,
    states: dict[int, dict[str, Tensor]] | None = None,
    averages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, its tiles run by one process.

    figures: of the evaluations, which a plateau follows, by the steps done; the last of them is at the end. states: gets the
    state dict at each of them.
    averages: see `plain_loop`.
    """
    experiment = Experiment(config)
    module, recipe, figures = experiment.chain.module, experiment.recipe, figures or {}
    tiles, average = plain_tiles(experiment.chain, experiment.placement, recipe), plain_ema(module, recipe)
    plateaus = [plain_plateau(each, recipe) for each in tiles.optimizers if each is not None]
    read = experiment.loader.iterate(0, max(figures, default=experiment.steps))
    batches = ((batch.step, batch.inputs, batch.labels) for batch in read)
    for batch, counted in plain_counts(recipe, batches):
        tiles.step(*batch, counted)
        done = batch[0] + 1
        if average is not None and done % recipe.accumulate_batches == 0:
            average.update_parameters(module)
        if done not in figures:
            continue
        for plateau in plateaus:
            if plateau is not None:
                plateau.step(figures[done])
        if states is not None:
            states[done] = {name: value.clone() for name, value in module.state_dict().items()}
    if average is not None and averages is not None:
        averages |= {name: value.clone() for name, value in average.module.state_dict().items()}
    return {name: value.clone() for name, value in module.state_dict().items()}


def plain_tiles(chain: Chain, placement: Placement, recipe: Recipe) -> "PlainTiles":
    """One process that trains the blocks of a chain in place."""
    parameters = [block.named_parameters().values() for block in chain.blocks]
    tiles = PlainTiles([block.module for block in chain.blocks], placement, recipe, parameters)
    tiles.in_order = list(chain.module.parameters())
    return tiles


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
        self.in_order = list(self.blocks.parameters())
        """All parameters, in the order in which one clipping of all adds up their norms."""
        self.scaler = plain_scaler(recipe)
        self.skipped: list[int] = []
        """The steps whose updates an overflow has skipped."""
        self._placement, self._recipe = placement, recipe
        self.optimizers = [
            plain_optimizer(block, recipe.optimizer) if any(p.requires_grad for p in block.parameters()) else None
            for block in self.blocks
        ]

    def change(self, placement: Placement) -> None:
        """Run other tiles from now on."""
        self._placement = placement

    def step(self, step: int, inputs: Tensor, labels: Tensor, counted: PlainCounts | None = None) -> float:
        """Train on one batch; returns its mean loss."""
        samples = len(labels)
        features: Pieces = [(Rows(0, samples), inputs)]
        copies: list[list[_Part]] = []
        for index, block in enumerate(self.blocks):
            tiles = sorted(self._placement.holders(index), key=lambda tile: tile.rows.begin)
            parts: list[_Part] = []
            for tile in tiles:
                if (rows := tile.rows.scaled(samples, self._placement.batch_size)).count:
                    module = block if len(tiles) == 1 else copy.deepcopy(block)
                    part = _Part(rows, module, _taken(features, rows))
                    # Random numbers of a part follow from its first sample in a whole batch.
                    begin = [tile.rows.begin] if tile.rows.begin else []
                    with random_state(self._recipe.seed, step, index, *begin), self._computing():
                        part.outputs = module(part.inputs.clone())
                    parts.append(part)
            copies.append(parts)
            features = [(part.rows, part.outputs.detach()) for part in parts]
        loss, gradients = self._loss(features, labels, counted)
        for parts in reversed(copies):
            for part in parts:
                part.backward(_taken_gradient(gradients, part.rows))
            gradients = [(part.rows, part.gradient) for part in parts]
        with torch.no_grad():
            for index, parts in enumerate(copies):
                if len(self._placement.holders(index)) > 1:
                    self._join(index, [(part.rows, part.module) for part in parts])
            if (step + 1) % self._recipe.accumulate_batches:
                return loss
            overflowed = self.scaler.is_enabled() and self._overflowed()
            if overflowed:
                self.blocks.zero_grad()
                self.skipped.append(step)
            elif self._recipe.optimizer.clip == "model":
                torch.nn.utils.clip_grad_norm_(self.in_order, self._recipe.optimizer.clip_norm)
            for index in [] if overflowed else range(len(copies)):
                if (optimizer := self.optimizers[index]) is not None:
                    clipped = [] if self._recipe.optimizer.clip == "model" else [self._parameters[index]]
                    plain_update(clipped, optimizer, self._recipe, step)
            self.scaler.update()
        return loss

    def _loss(self, outputs: "Pieces", labels: Tensor, counted: PlainCounts | None) -> tuple[float, "Gradients"]:
        """The mean loss, and its gradient at each piece of the output."""
        total, gradients = 0.0, []
        for rows, output in outputs:
            leaf = output.requires_grad_()
            with self._computing():
                own = labels[rows.begin : rows.end].clone()
                if counted is None:
                    loss = nn.functional.cross_entropy(leaf, own) * (rows.count / len(labels))
                    root = loss / self._recipe.accumulate_batches
                else:
                    loss = nn.functional.cross_entropy(leaf, own, reduction="sum")
                    root = loss / counted.update
            (gradient,) = torch.autograd.grad(self.scaler.scale(root), leaf)
            total += float(loss.detach()) / (1 if counted is None else counted.batch)
            gradients.append((rows, gradient))
        return total, gradients

    def _computing(self) -> torch.autocast:
        return plain_precision(self._recipe)

    def _overflowed(self) -> bool:
        """Tell whether any gradient of an update is not finite; take the scale of the loss from all."""
        for optimizer in self.optimizers:
            if optimizer is not None:
                self.scaler.unscale_(optimizer)
        gradients = [parameter.grad for parameter in self.blocks.parameters() if parameter.grad is not None]
        return not all(bool(gradient.isfinite().all()) for gradient in gradients)

    def _join(self, index: int, parts: Sequence[tuple[Rows, nn.Module]]) -> None:
        whole = self.blocks[index]
        for name, parameter in whole.named_parameters():
            found = [grad for _, part in parts if (grad := part.get_parameter(name).grad) is not None]
            if found:
                total = found[0].clone()
                for grad in found[1:]:
                    total = total + grad
                parameter.grad = total if parameter.grad is None else parameter.grad + total
        for name, buffer in whole.named_buffers():
            values = [(part.get_buffer(name), rows.count) for rows, part in parts]
            mean = values[0][0]
            if buffer.is_floating_point() and len(values) > 1:
                total = sum(value.double() * count for value, count in values)
                mean = (total / sum(count for _, count in values)).to(buffer.dtype)
            buffer.copy_(mean)


Pieces = list[tuple[Rows, Tensor]]
"""Rows of a feature, in the order of the samples."""
Gradients = list[tuple[Rows, Tensor | None]]
"""The same of its error gradient; None where no gradient reaches them."""


class _Part:
    """One tile of one block in one step."""

    outputs: Tensor

    def __init__(self, rows: Rows, module: nn.Module, inputs: Tensor) -> None:
        self.rows, self.module, self.gradient = rows, module, None
        self.inputs = inputs.detach()
        if self.inputs.is_floating_point():
            self.inputs.requires_grad_()
            self.inputs.register_hook(self._note)  # `.grad` would have the strides of the inputs

    def _note(self, gradient: Tensor) -> None:
        self.gradient = gradient

    def backward(self, gradient: Tensor | None) -> None:
        """The gradient at the outputs goes back to the parameters and to the inputs."""
        if gradient is not None and self.outputs.requires_grad:
            torch.autograd.backward(self.outputs, gradient)


def _taken(pieces: Pieces, rows: Rows) -> Tensor:
    """These rows out of pieces."""
    if pieces[0][0] == rows:
        return pieces[0][1]
    found = [
        piece if both == held else piece[both.begin - held.begin : both.end - held.begin].clone()
        for held, piece in pieces
        if (both := held.overlap(rows)) is not None
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def _taken_gradient(pieces: Gradients, rows: Rows) -> Tensor | None:
    """The same; where no gradient reaches some of the rows, theirs is zero."""
    known = next((piece for held, piece in pieces if piece is not None and held.overlap(rows) is not None), None)
    if known is None:
        return None
    filled = [
        (held, known.new_zeros((held.count, *known.shape[1:])) if piece is None else piece) for held, piece in pieces
    ]
    return _taken(filled, rows)
