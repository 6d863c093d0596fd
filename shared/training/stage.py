"""A stage: what one side runs, a contiguous run of blocks, which may be none: forward, backward and update.

It does not know whether it is first or last, nor where its inputs come from or its outputs go. A block computes the same
wherever it runs: its random state is derived from (seed, step, block), its gradients are clipped and its optimizer state
is kept by itself, and its learning rate follows from the step. Called from one thread.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shared.errors import ModelError
from shared.foreign import described, foreign_code
from shared.model.chain import Block, Chain
from shared.model.features import Features, Gradients, call_module
from shared.model.random_state import random_state
from shared.training import block_state
from shared.training.optimizers import build_optimizer
from shared.training.recipe import Recipe
from shared.training.schedule import learning_rate


@dataclass(slots=True)
class Graph:
    """One forward with the graph that its backward needs; nobody writes to `outputs`."""

    outputs: Features
    input_gradients: list[Tensor | None]
    """Slot by slot what the backward has found so far."""


Weights = dict[int, dict[str, Tensor]]
"""Trainable parameters of a stage: by block, and by their name in the block's own module."""
BlockGradients = dict[str, Tensor]
"""The gradient of a block: by the parameter's name in the whole module; none where no gradient reaches it."""


class Stage:
    """Blocks [first, stop) of a chain on one device, with their optimizers."""

    def __init__(
        self, chain: Chain, first: int, stop: int, recipe: Recipe, device: torch.device, *, first_sample: int = 0
    ) -> None:
        """first_sample: of the batch, where the stage has a part of it: other parts draw other random numbers."""
        self.chain = chain
        self.recipe = recipe
        self.device = device
        self.first, self.stop = first, first
        self.weights_version = 0
        """Rises whenever weights change."""
        self._random_parts = (first_sample,) if first_sample else ()
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._taken_in: set[int] = set()
        self._training: bool | None = None
        self.move(first, stop, {})

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that this stage runs, in order."""
        return self.chain.blocks[self.first : self.stop]

    @property
    def trainable(self) -> bool:
        """Whether any block of the stage has something to learn."""
        return any(block.trainable for block in self.blocks)

    @property
    def gradients_return(self) -> bool:
        """Whether error gradients return to the outputs: whether any is of use there."""
        return self.chain.gradients_return(self.stop)

    def forward(self, step: int, inputs: Features, *, input_gradient: bool, weights: Weights | None = None) -> Graph:
        """Run the blocks in training mode and keep the graph. Raises ModelError when a block fails.

        inputs: what crosses into the first block, batch first. input_gradient: whether `backward` returns the error gradients
        at those of `inputs` that are floats. weights: a copy to run on instead of the stage's own. Buffers (batch-norm
        statistics) are updated.
        """
        sources = tuple(tensor.detach().to(self.device) for tensor in inputs)
        leaves = [
            (slot, source) for slot, source in enumerate(sources) if input_gradient and source.is_floating_point()
        ]
        for _, leaf in leaves:
            leaf.requires_grad_()
        with torch.set_grad_enabled(bool(leaves) or self.trainable):
            graph = Graph(self._run(step, sources, weights), [None] * len(sources))
        for slot, leaf in leaves:
            # A hook sees the gradient with the strides that the backward made; `.grad` would have the input's.
            leaf.register_hook(partial(graph.input_gradients.__setitem__, slot))  # type: ignore[no-untyped-call]
        return graph

    def backward(self, graph: Graph, gradients: Gradients) -> Gradients:
        """Back-propagate `gradients`, the error gradients at the outputs of `graph`, into the parameters' `.grad`.

        Returns the error gradients at the inputs: None at each if `forward` was not asked for them, and at those that no
        gradient reaches. Raises ModelError when the backward fails.
        """
        of_use = tuple(
            gradient.to(self.device) if gradient is not None and output.requires_grad else None
            for output, gradient in zip(graph.outputs, gradients, strict=True)
        )
        if not self.blocks:  # inputs and outputs are one
            return of_use
        roots = [output for output, gradient in zip(graph.outputs, of_use, strict=True) if gradient is not None]
        if roots:
            with _failures_of("the backward of", *self.blocks):
                torch.autograd.backward(roots, [gradient for gradient in of_use if gradient is not None])
        return tuple(graph.input_gradients)

    def update(self, step: int) -> None:
        """Clip, step every block's optimizer at the learning rate of `step`, and drop the gradients."""
        for block in self.blocks:
            self._update(block, step)

    def update_block(self, index: int, step: int, gradient: BlockGradients) -> None:
        """The same for one block, by this gradient."""
        block = self.chain.blocks[index]
        for name, parameter in block.named_parameters().items():
            parameter.grad = gradient.get(name)
        self._update(block, step)

    def _update(self, block: Block, step: int) -> None:
        optimizer, clip_norm = self._optimizers.get(block.index), self.recipe.optimizer.clip_norm
        if optimizer is None:
            return
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip_norm, foreach=False)
        optimizer.param_groups[0]["lr"] = learning_rate(self.recipe, step)
        with _failures_of("the update of", block):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.weights_version += 1

    def take_gradients(self) -> dict[int, BlockGradients]:
        """What backwards have left, by block; the parameters have no gradient afterwards."""
        taken: dict[int, BlockGradients] = {}
        for block in self.blocks:
            of_block = taken.setdefault(block.index, {})
            for name, parameter in block.named_parameters().items():
                if parameter.grad is not None:
                    of_block[name], parameter.grad = parameter.grad, None
        return taken

    def forward_only(self, step: int, inputs: Features) -> Features:
        """Run the blocks in training mode without a graph; buffers are updated."""
        with torch.no_grad():
            return self._run(step, self._placed(inputs), None)

    def _run(self, step: int, features: Features, weights: Weights | None) -> Features:
        features = self._writable(features)
        self._set_mode(training=True)
        for block in self.blocks:
            if block.draws_random:
                with random_state(self.recipe.seed, step, block.index, *self._random_parts):
                    features = _call(block, features, weights)
            else:
                features = _call(block, features, weights)
        return features

    def _placed(self, features: Features) -> Features:
        return tuple(tensor.to(self.device) for tensor in features)

    def _writable(self, features: Features) -> Features:
        """What the first block may write to: copies, if it does."""
        if not self.blocks or not self.blocks[0].modifies_input:
            return features
        return tuple(tensor.clone() for tensor in features)

    def copy_weights(self) -> Weights:
        """A copy of the trainable parameters, to run a forward on while the originals go on learning."""
        return {
            block.index: {
                name: parameter.detach().clone().requires_grad_()
                for name, parameter in block.module.named_parameters()
                if parameter.requires_grad
            }
            for block in self.blocks
        }

    def adopt_gradients(self, weights: Weights) -> None:
        """Move the gradients that a backward left on a copy of the weights to the parameters that were copied."""
        for block in self.blocks:
            parameters = dict(block.module.named_parameters())
            for name, copy in weights[block.index].items():
                parameters[name].grad, copy.grad = copy.grad, None

    def evaluate(self, inputs: Features) -> Features:
        """Forward in evaluation mode without a graph; nothing changes."""
        self._set_mode(training=False)
        with torch.no_grad():
            features = self._writable(self._placed(inputs))
            for block in self.blocks:
                features = _call(block, features, None)
        return features

    def move(self, first: int, stop: int, arriving: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Run blocks [first, stop) from now on; those that leave take their optimizers with them.

        arriving: the states of blocks that come from elsewhere. Raises ProtocolError, and changes nothing, if one of
        them does not fit.
        """
        for index, tensors in arriving.items():
            self.check_block(index, tensors)
        staying = {*range(max(first, self.first), min(stop, self.stop)), *self._taken_in}
        self._taken_in = set()
        self._optimizers = {index: kept for index, kept in self._optimizers.items() if index in staying}
        for block in self.blocks:
            if not first <= block.index < stop:
                block.module.to("cpu")  # what leaves must not hold a GPU's memory
        self.first, self.stop = first, stop
        for block in self.blocks:
            if block.index not in staying:
                self._place(block)
            if block.index in arriving:
                self.load_block(block.index, arriving[block.index])

    def take_in(self, stop: int, arriving: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Hold the blocks before `stop` too, in the states that arrive, so that a `move` to `stop` needs no more memory.

        They are not run yet, and `let_go` undoes it. Raises ProtocolError when a state does not fit, ModelError when there is
        no room; then nothing is taken in.
        """
        for index, tensors in arriving.items():
            self.check_block(index, tensors)
        try:
            for block in self.chain.blocks[self.stop : stop]:
                self._taken_in.add(block.index)
                self._place(block)
                if block.index in arriving:
                    self.load_block(block.index, arriving[block.index])
        except (MemoryError, RuntimeError) as cause:
            self.let_go()
            raise ModelError(f"there is no room here for the blocks up to cut {stop}: {cause}") from cause

    def let_go(self) -> None:
        """Hold only the blocks that are run; the others leave a GPU's memory."""
        self._optimizers = {index: kept for index, kept in self._optimizers.items() if index not in self._taken_in}
        for index in self._taken_in:
            self.chain.blocks[index].module.to("cpu")
        self._taken_in = set()

    def block_tensors(self, index: int) -> block_state.BlockTensors:
        """The state of one of this stage's blocks, not copied."""
        return block_state.collect(self.chain.blocks[index], self._optimizers.get(index))

    def check_block(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Refuse a state that does not fit one of the chain's blocks under this recipe. Raises ProtocolError."""
        block_state.check(self.chain.blocks[index], self.recipe.optimizer, tensors)

    def load_block(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state of one of this stage's blocks. Raises ProtocolError, and changes nothing, if it does not fit."""
        block_state.restore(self.chain.blocks[index], self._optimizers.get(index), self.recipe.optimizer, tensors)
        self.weights_version += 1

    def take_weights(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on with parameters and buffers from the owner of a block. Raises ProtocolError, as `load_block` does."""
        block_state.restore(self.chain.blocks[index], None, None, tensors)
        self.weights_version += 1

    def _set_mode(self, *, training: bool) -> None:
        if self._training is not training:
            self._training = training
            for block in self.blocks:
                block.module.train(training)

    def _place(self, block: Block) -> None:
        self._training = None
        block.module.to(self.device)
        parameters = [parameter for parameter in block.named_parameters().values() if parameter.requires_grad]
        if parameters:
            self._optimizers[block.index] = build_optimizer(parameters, self.recipe.optimizer)


def with_zeros(gradients: Gradients, features: Features) -> Gradients:
    """What goes back to the sender of `features`: zeros at the floats that no gradient reaches, as behind a `detach`."""
    return tuple(
        torch.zeros(feature.shape, dtype=feature.dtype)
        if gradient is None and feature.is_floating_point()
        else gradient
        for gradient, feature in zip(gradients, features, strict=True)
    )


def _call(block: Block, features: Features, weights: Weights | None) -> Features:
    with _failures_of("", block):
        return call_module(block.module, features, None if weights is None else weights[block.index])


@contextmanager
def _failures_of(what: str, *blocks: Block) -> Iterator[None]:
    """A block is its user's own and may raise anything; it is the user who has to read it."""

    def failure(cause: BaseException) -> ModelError:
        names = " to ".join(repr(block.name) for block in dict.fromkeys((blocks[0], blocks[-1])))
        noun = "block" if len(blocks) == 1 else "blocks"
        return ModelError(f"{what} {noun} {names} failed with {described(cause)}".lstrip())

    with foreign_code(failure):
        yield
