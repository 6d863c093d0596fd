"""What a stage does with a batch between its forward and the return of its error gradient.

Where no update can lie between the two (K = 0), its graph is kept and used. Otherwise there are two policies: `replay`
recomputes the forward with today's weights (paper 000, Eq. 3); `stash` keeps the graph and the weights that made it
(PipeDream; FTPipeHD in paper 001). Called from the compute thread; batches come back in the order they went.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from torch import Tensor, nn

from shared.model.features import Features, Gradients
from shared.training.stage import Graph, Stage, Weights


class BackwardPolicy(Protocol):
    """Forward now, backward when the gradient is there. A new one is a class and its line in `POLICIES`."""

    keeps_graphs: ClassVar[bool]
    """Whether activations, and the weights that made them, are held for every batch in flight, or its input alone."""

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        """input_gradient: whether the error gradients at the stage's inputs are of use to anybody."""

    @property
    def gradients_return(self) -> bool:
        """Whether error gradients return, so that `backward` is called: not when nothing in the stage learns, nor when no
        gradient can reach it."""

    def forward(self, step: int, inputs: Features, *, weights_stay: bool) -> Features:
        """The features of a batch, detached; whatever their backward needs is kept.

        weights_stay: the weights change no more before this batch's own update.
        """

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """Take the error gradients of the oldest batch in flight, which is `step`, back to the stage's parameters and inputs.

        gradients: at the features that `forward` returned, same shapes. Returns those at the inputs, None at each where they
        are of no use. The update follows, by `Stage.update` or whoever else owns a block.
        """


class Replay:
    """Feature replay (paper 000, 4.1.1): the history holds inputs and no activations.

    The replay draws the batch's own random numbers, because a block's random state follows from the step, and it leaves
    buffers alone, because the first forward has updated them for this batch already.
    """

    keeps_graphs: ClassVar[bool] = False

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        self._stage = stage
        self._input_gradient = input_gradient
        self._history: deque[tuple[int, Features | Graph]] = deque()

    @property
    def gradients_return(self) -> bool:
        """See `BackwardPolicy`."""
        return self._stage.gradients_return

    def forward(self, step: int, inputs: Features, *, weights_stay: bool) -> Features:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        if self._history and isinstance(self._history[-1][1], Graph):  # K was 0 a moment ago
            _renew_buffers(self._stage)
        if weights_stay:
            graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient)
            self._history.append((step, graph))
            return _detached(graph)
        self._history.append((step, inputs))
        return self._stage.forward_only(step, inputs)

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, kept = self._history.popleft()
        assert remembered == step
        if not isinstance(kept, Graph):
            with _buffers_kept(self._stage):
                kept = self._stage.forward(step, kept, input_gradient=self._input_gradient)
        return self._stage.backward(kept, gradients)


class Stash:
    """Weight stashing: each batch's backward runs on the graph and the weights of its own forward.

    Costs a copy of the weights for every version in flight, and every batch's activations.
    """

    keeps_graphs: ClassVar[bool] = True

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        self._stage = stage
        self._input_gradient = input_gradient
        self._history: deque[tuple[int, Graph, Weights]] = deque()
        self._weights: Weights | None = None
        self._copied_version = -1

    @property
    def gradients_return(self) -> bool:
        """See `BackwardPolicy`."""
        return self._stage.gradients_return

    def forward(self, step: int, inputs: Features, *, weights_stay: bool) -> Features:  # noqa: ARG002 - the same either way
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        if self._weights is None or self._copied_version != self._stage.held.weights_version:
            self._weights, self._copied_version = self._stage.copy_weights(), self._stage.held.weights_version
        if self._history:
            _renew_buffers(self._stage)
        graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient, weights=self._weights)
        self._history.append((step, graph, self._weights))
        return _detached(graph)

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, graph, weights = self._history.popleft()
        assert remembered == step
        at_inputs = self._stage.backward(graph, gradients)
        self._stage.adopt_gradients(weights)
        self._weights = None  # an update follows
        return at_inputs


def _detached(graph: Graph) -> Features:
    return tuple(output.detach() for output in graph.outputs)


POLICIES: dict[str, type[BackwardPolicy]] = {
    "replay": Replay,
    "stash": Stash,
}


@contextmanager
def _buffers_kept(stage: Stage) -> Iterator[None]:
    """Let a forward write to copies of the stage's buffers, and put the real ones back behind it."""
    before = _renew_buffers(stage)
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)


def _renew_buffers(stage: Stage) -> list[tuple[nn.Module, dict[str, Tensor | None]]]:
    """Put copies in the place of the stage's buffers, and return each module with those that it had.

    A graph in flight may hold the ones that were there, and a forward writes to what it finds.
    """
    before = [(module, dict(module._buffers)) for block in stage.blocks for module in block.module.modules()]
    copies: dict[int, Tensor] = {}  # a buffer with two names stays one
    for module, buffers in before:
        for name, value in buffers.items():
            if value is not None:
                module._buffers[name] = copies.setdefault(id(value), value.detach().clone())
    return before
