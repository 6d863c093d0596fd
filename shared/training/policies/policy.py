"""The interface of policies for a batch in a stage, between its forward and the return of its error gradient.

Where no update can lie between the two, as with K = 0, its graph is kept and used (`kept_graph`). Otherwise policies differ,
and each has a file. Called from the compute thread; batches come back in the order they went.
"""

from typing import ClassVar, Protocol

from shared.model.features import Gradients, Slots
from shared.training.stage import Stage


class BackwardPolicy(Protocol):
    """Forward now, backward when the gradient is there. A new one is a file and its line in
    `shared/registry/policies.py`."""

    keeps_graphs: ClassVar[bool]
    """True if activations, and the weights that made them, are held for every batch in flight; otherwise its input alone."""

    def __init__(self, stage: Stage, *, input_gradient: bool = False) -> None:
        """input_gradient: True if the error gradients at the stage's inputs are needed."""

    def forward(self, step: int, inputs: Slots) -> Slots:
        """Compute the features of a batch, detached, and keep what their backward needs."""

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        """Take the error gradients of the oldest batch in flight, which is `step`, back to the stage's parameters and inputs.

        gradients: at the features that `forward` returned, same shapes. Returns those at the inputs, None at each where
        they are of no use. The update follows, by `HeldBlocks.update` or another owner of a block.
        """
