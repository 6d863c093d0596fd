"""Optimizers by name: their settings, and their state for a parameter."""

from shared.registry.optimizers.config import OptimizerConfig, settings_of
from shared.registry.optimizers.registry import OPTIMIZERS
from shared.registry.optimizers.spec import OptimizerSettings, OptimizerSpec

__all__ = ["OPTIMIZERS", "OptimizerConfig", "OptimizerSettings", "OptimizerSpec", "settings_of"]
