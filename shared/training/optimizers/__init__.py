"""Optimizers: how one is built from its configuration, and what it keeps for each parameter."""

from shared.training.optimizers.building import (
    StateLayout,
    StateTensor,
    build_optimizer,
    optimizer_bytes,
    state_layout,
)

__all__ = ["StateLayout", "StateTensor", "build_optimizer", "optimizer_bytes", "state_layout"]
