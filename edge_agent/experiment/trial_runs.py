"""Runs of a batch by the blocks of a model and the loss: all together, or one block by itself, with its gradients.

Each begins from the buffers of the first, and computes as a step does. Judges nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edge_agent.experiment.looks import Look, look_at
from edge_agent.experiment.trial_state import detached, reached, taken, tried
from shared.model.chain import Block, Chain
from shared.model.features import Features, Gradients, call_module
from shared.model.random_state import random_state
from shared.model.snapshot import BufferValues
from shared.training.losses import LossHead
from shared.training.precision import computing
from shared.training.recipe import Recipe
from shared.training.stage import run_engine


class Learnt(NamedTuple):
    """The results of a forward with its backward."""

    loss: float
    gradients: dict[int, Look]
    """A look at the gradient of each parameter that learns, by its id; none where no gradient came."""
    besides: list[Tensor]
    """The parameters that the loss reaches otherwise than by the outputs."""
    sparse: set[int]
    """The ids of the parameters that have got a sparse gradient."""


class Alone(NamedTuple):
    """The results of a block by itself."""

    outputs: Features
    at_inputs: Gradients
    at_parameters: list[tuple[nn.Parameter, Tensor]]


class TrialRuns:
    """The blocks, the loss and one batch."""

    def __init__(self, chain: Chain, recipe: Recipe, inputs: Features, labels: Features) -> None:
        self.inputs, self.labels = inputs, labels
        self.head = LossHead(recipe.loss, None)
        self.parameters = {id(each): each for block in chain.blocks for each in block.module.parameters()}
        """The parameters of all blocks, by their ids."""
        self.cleared = set[int]()
        """Ids of the parameters whose gradient a hook has taken away."""
        self._recipe = recipe
        self._answered = [chain.gradient_slots(block.index) for block in chain.blocks]
        self._buffers = [BufferValues(block.module) for block in chain.blocks]

    def entering(self) -> Features:
        """Copy the inputs."""
        return tuple(one.clone() for one in self.inputs)

    def restore_buffers(self, block: Block) -> None:
        """Have the buffers of a block as they were at first."""
        self._buffers[block.index].restore()

    def forward(self, block: Block, features: Features, values: dict[str, Tensor] | None = None) -> Features:
        """Run a block in training mode. values: as in `call_module`."""
        recipe = self._recipe
        with computing(recipe.base_precision), random_state(recipe.seed, 0, block.index):
            return call_module(block.module.train(), features, values)

    def learnt(self, forward: Callable[[], Features]) -> Learnt:
        """Run forward, loss and backward from the buffers of the beginning, and look at all gradients."""
        for buffers in self._buffers:
            buffers.restore()
        with computing(self._recipe.base_precision):
            features = forward()
            loss = self.head.compute(features, self.labels).loss
        besides = reached(loss, features)
        gradients, sparse = dict[int, Look](), set[int]()

        def look(parameter: Tensor) -> None:
            if parameter.grad is None:
                self.cleared.add(id(parameter))
                return
            if parameter.grad.is_sparse:
                sparse.add(id(parameter))
            gradients[id(parameter)], parameter.grad = look_at(parameter.grad), None

        with ExitStack() as hooks:
            for parameter in self.parameters.values():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
                    hooks.callback(hook.remove)
            if loss.requires_grad:
                run_engine((loss,), (torch.ones_like(loss),))
        return Learnt(float(loss.detach()), gradients, besides, sparse)

    def alone(
        self,
        block: Block,
        inputs: Features,
        gradients: Gradients,
        hide: Callable[[], AbstractContextManager[None]] | None,
    ) -> tuple[Alone | None, BaseException | None]:
        """Run a block forward and backward from the buffers of the beginning; returns what it raises where it fails.

        hide: the backward then runs on copies of the parameters, which are gone meanwhile.
        """
        self.restore_buffers(block)
        named = {name: each for name, each in block.module.named_parameters() if each.requires_grad}
        copies = {} if hide is None else {name: each.detach().clone().requires_grad_() for name, each in named.items()}
        learning = list(named.values())
        leaves = {slot: inputs[slot].detach().requires_grad_() for slot in self._answered[block.index]}

        def run() -> tuple[Features, Gradients, list[Tensor | None]]:
            entering = tuple(leaves.get(slot, one).clone() for slot, one in enumerate(inputs))
            outputs = self.forward(block, entering, copies or None)
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            if pairs:
                roots, at_roots = zip(*pairs, strict=True)
                with nullcontext() if hide is None else hide():
                    run_engine(roots, at_roots)
            at_inputs = {slot: leaf.grad for slot, leaf in leaves.items()}
            at_parameters = taken(copies.values() if copies else learning)
            return detached(outputs), tuple(map(at_inputs.get, range(len(inputs)))), at_parameters

        done, failure = tried(run)
        if done is None:
            taken(learning)
            return None, failure
        outputs, at_inputs, at_parameters = done
        pairs = zip(learning, at_parameters, strict=True)
        return Alone(outputs, at_inputs, [(each, found) for each, found in pairs if found is not None]), None
