"""Optimizers by name: their configuration, how one is built, and what it keeps for each parameter."""

from shared.training.optimizers.building import build_optimizer, optimizer_bytes, state_layout
from shared.training.optimizers.config import OptimizerConfig
from shared.training.optimizers.registry import OPTIMIZERS
from shared.training.optimizers.spec import OptimizerSettings, OptimizerSpec, StateLayout, StateTensor

__all__ = [
    "OPTIMIZERS",
    "OptimizerConfig",
    "OptimizerSettings",
    "OptimizerSpec",
    "StateLayout",
    "StateTensor",
    "build_optimizer",
    "optimizer_bytes",
    "state_layout",
]
