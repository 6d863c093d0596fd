"""A module's forward as a graph: its operations in order, each with its place, its call and the sizes of its value."""

from shared.model.tracing.comparison import Mode
from shared.model.tracing.forward import TracedForward, trace
from shared.model.tracing.record import Call, Device

__all__ = ["Call", "Device", "Mode", "TracedForward", "trace"]
