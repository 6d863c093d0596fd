"""The number of slices in which a group exchanges a block: told by bytes, the same to those who run and those who plan."""

SLICE_BYTES = 256 * 1024
"""The fewest bytes of a slice: with less, messages cost more than they save."""
SLICES_OF_ALL = 40
"""The most slices of all blocks together, but for what rounding adds. A fortieth of what travels in a step is little to wait
for. With a hundred and sixty, each message costs both sides more than its bytes."""


def slice_count(block_bytes: int, all_bytes: int) -> int:
    """Return the number of slices of a block whose parameters have so many bytes. all_bytes: of all blocks of the model."""
    return max(1, round(block_bytes / max(SLICE_BYTES, all_bytes / SLICES_OF_ALL)))
