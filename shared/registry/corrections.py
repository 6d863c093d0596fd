"""The corrections of staleness by name, and what they go by."""

from typing import Literal

from shared.registry.optimizers import OptimizerConfig, settings_of, spec_of
from shared.registry.optimizers.spec import Momentum

StalenessCorrection = Literal["none", "prediction"]


def momentum_of(config: OptimizerConfig) -> Momentum | None:
    """Return what weights go on with under an optimizer; None where it keeps nothing of the kind."""
    return spec_of(config).momentum(settings_of(config))
