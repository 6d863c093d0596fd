"""The losses by name. A new loss is a file of its own and its line here."""

from shared.training.losses.classes import CROSS_ENTROPY
from shared.training.losses.elementwise import BCE_WITH_LOGITS, L1, MSE
from shared.training.losses.spec import Labels, LossSpec

LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        CROSS_ENTROPY,
        MSE,
        L1,
        BCE_WITH_LOGITS,
    )
}


def labels_of(loss: str) -> Labels:
    """Which labels the loss of that name takes; any where it is a function of a user's own."""
    return LOSSES[loss].labels if loss in LOSSES else Labels.ANY
