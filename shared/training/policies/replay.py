"""Feature replay (paper 000, Eq. 3): the forward is computed again, with the weights of now."""

from collections import deque
from typing import ClassVar

from shared.model.features import Features, Gradients
from shared.training.policies.buffers import renew_buffers, unchanged_buffers
from shared.training.stage import Graph, Stage


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

    def forward(self, step: int, inputs: Features, *, weights_stay: bool) -> Features:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        if self._history and isinstance(self._history[-1][1], Graph):  # K was 0 a moment ago
            renew_buffers(self._stage)
        if weights_stay:
            graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient)
            self._history.append((step, graph))
            return detached(graph)
        self._history.append((step, inputs))
        return self._stage.forward_only(step, inputs)

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, kept = self._history.popleft()
        assert remembered == step
        if not isinstance(kept, Graph):
            with unchanged_buffers(self._stage):
                kept = self._stage.forward(step, kept, input_gradient=self._input_gradient)
        return self._stage.backward(kept, gradients)


def detached(graph: Graph) -> Features:
    """The outputs of a forward, without its graph."""
    return tuple(output.detach() for output in graph.outputs)
