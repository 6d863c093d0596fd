"""Optimizers: their building from a configuration, and their state for each parameter."""

from shared.training.optimizers.building import (
    Grouping,
    StateLayout,
    StateTensor,
    build_optimizer,
    check_sparse,
    optimizer_bytes,
    state_layout,
    update_memory,
)
from shared.training.optimizers.trial import check_optimizer, check_parameters

__all__ = [
    "Grouping",
    "StateLayout",
    "StateTensor",
    "build_optimizer",
    "check_optimizer",
    "check_parameters",
    "check_sparse",
    "optimizer_bytes",
    "state_layout",
    "update_memory",
]
