"""Feature replay (paper 000, Eq. 3): the forward is computed again, with the weights of now."""

from collections import deque
from typing import ClassVar

from shared.model.features import Gradients, Slots
from shared.training.buffers import put_buffers, renew_buffers
from shared.training.stage import Stage


class Replay:
    """Feature replay (paper 000, 4.1.1): the history holds inputs and no activations.

    The replay draws the batch's own random numbers, because a block's random state follows from the step, and it leaves
    buffers alone, because the first forward has updated them for this batch already.
    """

    keeps_graphs: ClassVar[bool] = False

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        self._stage = stage
        self._input_gradient = input_gradient
        self._history: deque[tuple[int, Slots]] = deque()

    def forward(self, step: int, inputs: Slots) -> Slots:
        """See `BackwardPolicy`."""
        if not self._stage.gradients_return:
            return self._stage.forward_only(step, inputs)
        with self._stage.predicted():
            features = self._stage.forward_only(step, inputs)
        self._stage.note_begun(step)
        self._history.append((step, inputs))
        return features

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        remembered, inputs = self._history.popleft()
        assert remembered == step
        before = renew_buffers(*self._stage.blocks)
        try:
            graph = self._stage.forward(step, inputs, input_gradient=self._input_gradient)
        finally:
            put_buffers(before)
        return self._stage.backward(graph, gradients)
