"""A stage: a contiguous run of blocks on one side, possibly none: forward, backward and update.

It does not know whether it is first or last, nor where its inputs come from or its outputs go. A block computes the
same wherever it runs: its random state is derived from (seed, step, block). Called from one thread.
"""

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from shared.model.chain import Block, Chain
from shared.model.features import Features, Gradients, Slots, call_module
from shared.model.random_state import GeneratorWatch, generators_held, random_state
from shared.training.activations import run_again_later
from shared.training.block_failures import failures_of, raise_block_failure
from shared.training.held_blocks import HeldBlocks
from shared.training.precision import computing_in
from shared.training.recipe import Recipe


@dataclass(slots=True)
class Graph:
    """One forward pass with the graph that its backward needs. `outputs` must not be written to."""

    outputs: Slots
    input_gradients: list[Tensor | None]
    """Results of the backward pass so far, by slot."""


Weights = dict[int, dict[str, Tensor]]
"""Trainable parameters of a stage: by block, and by their name in the block's own module."""


class Stage:
    """Blocks [first, stop) of those that a worker holds."""

    def __init__(
        self,
        held: HeldBlocks,
        first: int,
        stop: int,
        *,
        first_sample: int = 0,
        late: Collection[int] | None = None,
    ) -> None:
        """first_sample: of the batch, where the stage has a part of it: other parts draw other random numbers. late: the blocks
        whose updates may come late, so that their weights are predicted if the recipe says so; all, if left out."""
        self.held = held
        self.device = held.device
        self.first, self.stop = first, stop
        self.blocks: tuple[Block, ...] = held.chain.blocks[first:stop]
        """The blocks that this stage runs, in order."""
        self.trainable = any(block.trainable for block in self.blocks)
        """True if any block of the stage has something to learn."""
        self._answered = frozenset(held.chain.gradient_slots(first))
        self.gradients_return = held.chain.is_answered(first, stop)
        """True if error gradients return to outputs that the stage has made, because any is of use there."""
        self._random_parts = (first_sample,) if first_sample else ()
        self._sets_generators: bool | None = None
        """True if a backward sets the default generators, as `torch.utils.checkpoint` does; None until one has run."""
        is_corrected = held.recipe.staleness_correction != "none"
        self.late = tuple(
            block
            for block in self.blocks
            if is_corrected and (late is None or block.index in late)
            if any(parameter.requires_grad for parameter in block.module.parameters())
        )
        """The blocks whose weights are predicted: their own, and those that they use of others."""
        self._pending: deque[int] = deque()
        """Steps that have gone forward, and whose updates of these blocks are still to come."""
        self._spares: list[tuple[nn.Parameter, Tensor]] = []
        """Parameters that learn, each with memory for its predicted weights, once some were to be predicted."""
        self._computing = computing_in(held.precision, held.device)
        self._types = _types_at(held, first) if held.chain.types else []
        """By slot of the inputs, the types that the first block takes; empty where precisions change none."""
        prepared = {
            self._fitting: bool(self._types and self.blocks),
            self._writable: bool(self.blocks) and self.blocks[0].modifies_input,
        }
        self._prepared = [prepare for prepare, is_needed in prepared.items() if is_needed]
        """Functions through which the inputs go before the first block takes them."""

    def forward(self, step: int, inputs: Slots, *, input_gradient: bool, weights: Weights | None = None) -> Graph:
        """Run the blocks in training mode and keep the graph. Raises ModelError when a block fails.

        inputs: those of the first block, batch first; None for what no block here reads. input_gradient: whether `backward`
        returns the error gradients at those of `inputs` where they are of use. weights: a copy to run on instead of the
        stage's own. Buffers (batch-norm statistics) are updated.
        """
        sources = tuple(None if tensor is None else tensor.detach().to(self.device) for tensor in inputs)
        leaves = [
            (slot, source)
            for slot, source in enumerate(sources)
            if input_gradient and source is not None and slot in self._answered
        ]
        for _, leaf in leaves:
            leaf.requires_grad_()
        with torch.set_grad_enabled(bool(leaves) or self.trainable):
            entering = sources if self.held.precision == "fp32" else _views(sources)
            graph = Graph(self._run(step, entering, weights), [None] * len(sources))
        for slot, leaf in leaves:
            # A hook sees the gradient with the strides that the backward made; `.grad` would have the input's.
            leaf.register_hook(partial(graph.input_gradients.__setitem__, slot))  # type: ignore[no-untyped-call]
        return graph

    def backward(self, graph: Graph, gradients: Gradients) -> Gradients:
        """Back-propagate `gradients`, the error gradients at the outputs of `graph`, into the parameters' `.grad`.

        Returns the error gradients at the inputs: None at each if `forward` was not asked for them, and at those that no
        gradient reaches. Raises ModelError when the backward fails.
        """
        at_outputs: list[Tensor | None] = []
        roots: list[Tensor] = []
        at_roots: list[Tensor] = []
        for output, gradient in zip(graph.outputs, gradients, strict=True):
            if output is None or gradient is None or not output.requires_grad:
                at_outputs.append(None)
                continue
            roots.append(output)
            at_roots.append(gradient.to(self.device, output.dtype))
            at_outputs.append(at_roots[-1])
        if not self.blocks:  # inputs and outputs are one
            return tuple(at_outputs)
        return self._backward(graph, tuple(roots), tuple(at_roots))

    def backward_from(self, graph: Graph, loss: Tensor) -> Gradients:
        """The same where the graph goes on from the outputs to a loss, a scalar: backward from there, in one go."""
        if not loss.requires_grad:
            return self._backward(graph, (), ())
        return self._backward(graph, (loss,), (torch.ones_like(loss),))

    def _backward(self, graph: Graph, roots: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> Gradients:
        if roots:
            try:
                if self._sets_generators is False:
                    run_engine(roots, gradients)
                else:
                    self._run_with_generators(roots, gradients)
            except BaseException as cause:
                raise_block_failure("the backward of", cause, *self.blocks)
        return tuple(graph.input_gradients)

    def _run_with_generators(self, roots: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
        """Run the engine while no other thread draws random numbers: it would draw those of a forward that runs again.

        The first backward tells whether that is needed.
        """
        if self.device.type != "cpu" and self.held.recipe.checkpoint_activations:
            run_engine(roots, gradients)  # a GPU's backward has a thread of its own, in which our forwards borrow them
            return
        with generators_held():
            if self._sets_generators:
                run_engine(roots, gradients)
                return
            with GeneratorWatch() as watch:
                run_engine(roots, gradients)
            self._sets_generators = watch.is_set

    def update(self, step: int, *, is_late: bool = False) -> None:
        """Update every block by the gradients of its backward passes, and drop these. is_late: see `HeldBlocks.update`."""
        indices = range(self.first, self.stop)
        self.held.update(indices, step, late=indices if is_late else ())
        self.note_updated(step)

    def note_begun(self, step: int) -> None:
        """Note that a batch has gone forward, whose update is still to come."""
        if self.late:
            self._pending.append(step)

    def note_updated(self, step: int) -> None:
        """Note that the updates of the blocks that are late are done, up to that of this step."""
        while self._pending and self._pending[0] <= step:
            self._pending.popleft()

    def forward_only(self, step: int, inputs: Slots) -> Slots:
        """Run the blocks in training mode without a graph; buffers are updated."""
        with torch.no_grad():
            return self._run(step, self._placed(inputs), None)

    def _run(self, step: int, features: Slots, weights: Weights | None) -> Slots:
        for prepare in self._prepared:
            features = prepare(features)
        self._set_mode(training=True)
        runs_again = self.held.recipe.checkpoint_activations and torch.is_grad_enabled()
        with self._computing():
            for block in self.blocks:
                values = None if weights is None else weights[block.index] or None
                run = partial(self._run_block, block, step, values)
                try:
                    features = run_again_later(block, run, features) if runs_again else run(*features)
                except BaseException as cause:
                    raise_block_failure("", cause, block)
        return features

    def _run_block(
        self, block: Block, step: int, values: dict[str, Tensor] | None, *features: Tensor | None
    ) -> Features:
        if not block.draws_random:
            return call_module(block.module, features, values)
        with random_state(self.held.recipe.seed, step, block.index, *self._random_parts):
            return call_module(block.module, features, values)

    def _placed(self, features: Slots) -> Slots:
        return tuple(None if tensor is None else tensor.to(self.device) for tensor in features)

    def _fitting(self, features: Slots) -> Slots:
        """Return features of types that the blocks take: what another precision has made as it would be without any."""
        return tuple(
            tensor if tensor is None or tensor.dtype in types else tensor.to(types[0])
            for tensor, types in zip(features, self._types, strict=True)
        )

    def _writable(self, features: Slots) -> Slots:
        """Return copies, which the first block may write to."""
        return tuple(None if tensor is None else tensor.clone() for tensor in features)

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

    @contextmanager
    def predicted(self) -> Iterator[None]:
        """Have the weights that are predicted for the updates still to come; see `predict`. Those of now, where none are."""
        steps = self._updates_to_come()
        if not steps:
            yield
            return
        if not self._spares:
            parameters = dict.fromkeys(value for block in self.late for value in block.module.parameters())
            self._spares = [
                (value, torch.empty_like(value, requires_grad=False)) for value in parameters if value.requires_grad
            ]
        with torch.no_grad():
            torch._foreach_copy_([spare for _, spare in self._spares], [parameter for parameter, _ in self._spares])
        self.held.predict(self._spares, steps)
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        """Give the parameters the predicted weights or their own again: quicker than to call modules on copies."""
        for parameter, spare in self._spares:
            parameter.data, spare.data = spare.data, parameter.data

    def predict_weights(self) -> Weights | None:
        """A copy of the trainable parameters, predicted for the updates still to come; see `predict`. None where none are."""
        steps = self._updates_to_come()
        if not steps:
            return None
        weights = self.copy_weights()
        self.held.predict(
            [
                (parameter, weights[block.index][name])
                for block in self.late
                for name, parameter in block.module.named_parameters()
                if parameter.requires_grad
            ],
            steps,
        )
        return weights

    def _updates_to_come(self) -> list[int]:
        return [step for step in self._pending if self.held.recipe.updates_after(step)]

    def adopt_gradients(self, weights: Weights) -> None:
        """Move the gradients that a backward left on a copy of the weights to the copied parameters, whose hooks run."""
        for block in reversed(self.blocks):  # where two use one parameter, the last adds to it first, as autograd does
            parameters = dict(block.module.named_parameters())
            for name, copy in weights[block.index].items():
                parameter, gradient, copy.grad = parameters[name], copy.grad, None
                if gradient is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
                    with failures_of("the backward of", *self.blocks):
                        run_engine((parameter,), (gradient,))
                    continue
                if parameter.grad is not None and gradient is not None:
                    gradient = parameter.grad + gradient
                if gradient is not None:
                    parameter.grad = gradient

    def evaluate(self, inputs: Slots) -> Slots:
        """Forward in evaluation mode without a graph; nothing changes."""
        self._set_mode(training=False)
        with torch.no_grad(), self._computing():
            features = self._placed(inputs)
            for prepare in self._prepared:
                features = prepare(features)
            for block in self.blocks:
                with failures_of("", block):
                    features = call_module(block.module, features)
        return features

    def _set_mode(self, *, training: bool) -> None:
        for block in self.blocks:
            if block.module.training is not training:
                block.module.train(training)


def _types_at(held: HeldBlocks, feature: int) -> list[tuple[torch.dtype, ...]]:
    """By slot of a feature, the types that a worker's blocks take: that of the base precision, and that of the worker's own."""
    base = [spec.dtype for spec in held.chain.features[feature]]
    return list(zip(base, held.chain.types.get(held.precision, [base] * (feature + 1))[feature], strict=True))


def _views(leaves: Slots) -> Slots:
    """Return the same as no leaves: autocast casts a leaf once for all uses, and one process has none there."""
    return tuple(None if leaf is None else leaf.view_as(leaf) for leaf in leaves)


def lone_stage(chain: Chain, first: int, stop: int, recipe: Recipe, device: torch.device) -> Stage:
    """A stage that has its blocks for itself, to be measured or compared with."""
    return Stage(HeldBlocks(chain, recipe, device, range(first, stop)), first, stop)


def run_engine(
    roots: tuple[Tensor, ...], gradients: tuple[Tensor, ...], inputs: tuple[Tensor, ...] = ()
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.backward` of tensors with gradients of their own, or `grad` to inputs, without their check of arguments.

    That check takes as long as a small layer, and imports sympy, 34 MB of every process. The engine refuses wrong
    shapes itself.
    """
    found: tuple[Tensor | None, ...] = _engine_run_backward(
        roots, gradients, False, False, inputs, allow_unreachable=True, accumulate_grad=not inputs
    )
    return found
