"""The corrections of staleness by name, and what they go by."""

from typing import Literal

from shared.registry.optimizers import OptimizerConfig, settings_of, spec_of
from shared.registry.optimizers.spec import Momentum

StalenessCorrection = Literal["none", "prediction"]


def momentum_of(config: OptimizerConfig) -> Momentum | None:
    """Return what weights go on with under an optimizer; None where it keeps nothing of the kind."""
    return spec_of(config).momentum(settings_of(config))


def with_kept_momentum(config: OptimizerConfig, correction: StalenessCorrection) -> OptimizerConfig:
    """Return an optimizer that keeps all that this one may keep for a parameter under a correction of staleness."""
    momentum = None if correction == "none" else momentum_of(config)
    return config if momentum is None or momentum.is_own else config.model_copy(update={"momentum": momentum.decay})
