"""The graph of the forward, kept: where no update can lie between a forward and its backward, nothing else is needed."""

from collections import deque
from typing import ClassVar

from shared.model.features import Gradients, Slots
from shared.training.stage import Graph, Stage


class KeptGraph:
    """Each batch's backward runs on the graph of its own forward, and on the stage's own weights, which are those of then."""

    keeps_graphs: ClassVar[bool] = True

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        self._stage = stage
        self._input_gradient = input_gradient
        self._history: deque[tuple[int, Graph]] = deque()

    def forward(self, step: int, inputs: Slots) -> Slots:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient)
        self._history.append((step, graph))
        return detached(graph)

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, graph = self._history.popleft()
        assert remembered == step
        return self._stage.backward(graph, gradients)


def detached(graph: Graph) -> Slots:
    """The outputs of a forward, without its graph."""
    return tuple(None if output is None else output.detach() for output in graph.outputs)
