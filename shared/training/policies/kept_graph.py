"""The graph of the forward, kept: where nothing changes the weights between a forward and its backward."""

from collections import deque
from typing import ClassVar

from shared.model.features import Gradients, Slots
from shared.training.stage import Graph, Stage, Weights


class KeptGraph:
    """Each batch's backward runs on the graph of its own forward, and on the weights of then: the stage's own, or predicted
    ones where updates come late."""

    keeps_graphs: ClassVar[bool] = True

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        self._stage = stage
        self._input_gradient = input_gradient
        self._history: deque[tuple[int, Graph, Weights | None]] = deque()

    def forward(self, step: int, inputs: Slots) -> Slots:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        weights = self._weights_to_run_on()
        graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient, weights=weights)
        self._stage.note_begun(step)
        self._history.append((step, graph, weights))
        return tuple(None if output is None else output.detach() for output in graph.outputs)

    def _weights_to_run_on(self) -> Weights | None:
        """A copy of weights to run a forward on; None for the stage's own."""
        return self._stage.predict_weights()

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, graph, weights = self._history.popleft()
        assert remembered == step
        at_inputs = self._stage.backward(graph, gradients)
        if weights is not None:
            self._stage.adopt_gradients(weights)
        return at_inputs
