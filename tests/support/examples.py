"""Number of examples that a property draws: few in `make test`, and as many as it asks for in `make test-slow`."""

from hypothesis import settings

MOST = 100
"""Examples that a property draws that does not say how many it wants."""


def examples(most: int) -> int:
    """Returns what the profile in force draws of so many examples."""
    return max(2, most * settings().max_examples // MOST)
