"""Weight stashing (PipeDream; FTPipeHD in paper 001): the graph is kept, and the weights that made it."""

from shared.model.features import Gradients
from shared.training.buffers import renew_buffers
from shared.training.policies.kept_graph import KeptGraph
from shared.training.stage import Stage, Weights


class Stash(KeptGraph):
    """Weight stashing: each batch's backward runs on the graph and the weights of its own forward.

    Costs a copy of the weights for every version in flight, and every batch's activations.
    """

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        super().__init__(stage, input_gradient=input_gradient)
        self._weights: Weights | None = None
        self._copied_version = -1

    def _weights_to_run_on(self) -> Weights:
        """Predicted ones, or a copy of the weights of now: one for all batches between two updates."""
        if self._history:
            renew_buffers(*self._stage.blocks)
        if (predicted := super()._weights_to_run_on()) is not None:
            return predicted
        if self._weights is None or self._copied_version != self._stage.held.weights_version:
            self._weights, self._copied_version = self._stage.copy_weights(), self._stage.held.weights_version
        return self._weights

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """See `BackwardPolicy`."""
        self._weights = None  # an update follows
        return super().backward(step, gradients)
