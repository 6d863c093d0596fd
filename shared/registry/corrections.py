"""The corrections of staleness by name, and the optimizers that each suits."""

from typing import Literal

from shared.registry.optimizers import OptimizerConfig, settings_of, spec_of
from shared.registry.optimizers.spec import Momentum

StalenessCorrection = Literal["none", "prediction"]


def momentum_of(config: OptimizerConfig) -> Momentum | None:
    """Return what weights go on with under an optimizer; None where it keeps nothing of the kind."""
    return spec_of(config).momentum(settings_of(config))


def check_correction(correction: StalenessCorrection, config: OptimizerConfig) -> None:
    """Refuse a correction under an optimizer that it does not suit. Raises ValueError."""
    if correction == "prediction" and momentum_of(config) is None:
        raise ValueError(
            'deployment.staleness_correction is "prediction", which follows the momentum of the optimizer, and '
            f'{config.name} has none; take sgd or rmsprop with a momentum above 0, adam or adamw, or set it to "none"'
        )
