"""Memory that this device has left, and the least that blocks take."""

import sys
from pathlib import Path

from shared.model.chain import Chain
from shared.model.features import specs_bytes


def available_bytes() -> int:
    """Return the bytes that can be taken without swapping, by the kernel's own estimate; no bound where it gives
    none."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return sys.maxsize


def needed_bytes(chain: Chain, first: int, stop: int) -> int:
    """A bound from below of training blocks [first, stop): weights, gradients and moments, and what crosses them both ways."""
    weights = sum(p.nbytes for block in chain.blocks[first:stop] for p in block.named_parameters().values())
    return 4 * weights + 2 * sum(map(specs_bytes, chain.features[first : stop + 1]))
