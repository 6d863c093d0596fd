"""The losses by name, and which labels each takes. A new loss is its line here, and a function where torch has none."""

from dataclasses import dataclass
from enum import Enum, auto


class Labels(Enum):
    """The labels that a loss takes."""

    CLASSES = auto()
    """The number of a class, for an output whose second dimension is the classes; or a probability of each."""
    TOKENS = auto()
    """The number of a class for each place of a sequence, for an output whose last dimension is the classes; -100 counts for
    nothing."""
    ALIKE = auto()
    """One for each number of the output; torch would stretch one to the other's shape and go on."""
    ANY = auto()
    """Labels that the function itself judges."""


@dataclass(frozen=True, slots=True)
class LossSpec:
    """One loss."""

    name: str
    """In configurations and recipes."""
    implementation: str
    """The function, as `package.module:name`: mean over the batch, of (output, labels)."""
    labels: Labels

    @property
    def divisible(self) -> bool:
        """True if the means of parts of a batch, weighted by their samples, are the mean of the batch."""
        return self.labels is not Labels.TOKENS


LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec("cross_entropy", "torch.nn.functional:cross_entropy", Labels.CLASSES),
        LossSpec("token_cross_entropy", "shared.training.losses.tokens:token_cross_entropy", Labels.TOKENS),
        LossSpec("mse", "torch.nn.functional:mse_loss", Labels.ALIKE),
        LossSpec("l1", "torch.nn.functional:l1_loss", Labels.ALIKE),
        LossSpec("bce_with_logits", "torch.nn.functional:binary_cross_entropy_with_logits", Labels.ALIKE),
    )
}


def labels_of(loss: str) -> Labels:
    """Return the labels that the loss of that name takes; any where it is a function of a user's own."""
    return LOSSES[loss].labels if loss in LOSSES else Labels.ANY
