"""Optimizers by name: their settings, and their state for a parameter."""

from shared.registry.optimizers.config import OptimizerConfig, base_rates, settings_of, spec_of
from shared.registry.optimizers.registry import OPTIMIZERS
from shared.registry.optimizers.spec import OptimizerGroup, OptimizerSettings, OptimizerSpec

__all__ = [
    "OPTIMIZERS",
    "OptimizerConfig",
    "OptimizerGroup",
    "OptimizerSettings",
    "OptimizerSpec",
    "base_rates",
    "settings_of",
    "spec_of",
]
