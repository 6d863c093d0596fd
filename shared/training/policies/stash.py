"""Weight stashing (PipeDream; FTPipeHD in paper 001): the graph is kept, and the weights that made it."""

from collections import deque
from typing import ClassVar

from shared.model.features import Gradients, Slots
from shared.training.buffers import renew_buffers
from shared.training.policies.kept_graph import detached
from shared.training.stage import Graph, Stage, Weights


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

    def forward(self, step: int, inputs: Slots) -> Slots:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        weights = self._stage.predict_weights(pending for pending, _, _ in self._history) or self._present_weights()
        if self._history:
            renew_buffers(*self._stage.blocks)
        graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient, weights=weights)
        self._history.append((step, graph, weights))
        return detached(graph)

    def _present_weights(self) -> Weights:
        """A copy of the weights of now: one for all batches between two updates."""
        if self._weights is None or self._copied_version != self._stage.held.weights_version:
            self._weights, self._copied_version = self._stage.copy_weights(), self._stage.held.weights_version
        return self._weights

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, graph, weights = self._history.popleft()
        assert remembered == step
        at_inputs = self._stage.backward(graph, gradients)
        self._stage.adopt_gradients(weights)
        self._weights = None  # an update follows
        return at_inputs
