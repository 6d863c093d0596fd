"""Running blocks: stages, backward policies, losses, optimizers, schedules, and their state as data."""

# NumPy loads this when it is first asked for. Where two threads ask at once, as those that save tensors may, both fail.
import numpy.ctypeslib  # noqa: F401
