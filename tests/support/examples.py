"""Number of examples that a property draws: a fifth in `make test` and `make test-slow`, all in `make test-full`."""

from hypothesis import settings

MOST = 100
"""Examples that a property draws that does not say how many it wants."""


def examples(most: int) -> int:
    """Returns what the profile in force draws of so many examples."""
    return max(2, most * settings().max_examples // MOST)
