"""The number of slices in which a group exchanges a block: told by its bytes, the same to those who run and those who plan."""

SLICE_BYTES = 512 * 1024
"""Bytes of a slice: with fewer, messages cost more than they save; with more, what is needed first waits longer."""
MOST_SLICES = 64
"""Slices of one block at most: those of larger blocks have more bytes."""


def slice_count(block_bytes: int) -> int:
    """Return the number of slices of a block whose parameters have so many bytes."""
    return min(MOST_SLICES, max(1, round(block_bytes / SLICE_BYTES)))
