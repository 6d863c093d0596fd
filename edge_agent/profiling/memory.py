"""Memory that this device has left, and the least that blocks take."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.model.chain import Chain
from shared.model.features import specs_bytes

_TAKEN = "anon", "shmem", "kernel", "total_rss", "total_shmem"
"""Entries of memory.stat, of either version of control groups, that the kernel cannot drop."""


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that can be taken without swapping, by the kernel's own estimate and within the limits of the control
    groups of this process, as a container's or a unit's; no bound where it gives none."""
    left = list(_left_in_groups(proc, groups))
    with suppress(OSError):
        left += [1024 * of["MemAvailable:"] for of in [_numbers(proc / "meminfo")] if "MemAvailable:" in of]
    return max(min(left, default=sys.maxsize), 0)


def _left_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is left in each group that has a limit. Pages that the kernel can drop do not count as taken."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, limit = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # a limit of "max" is none
                taken = _numbers(folder / "memory.stat")
                yield int((folder / limit).read_text()) - sum(taken.get(kind, 0) for kind in _TAKEN)
            if folder == root:
                break


def _numbers(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def needed_bytes(chain: Chain, first: int, stop: int) -> int:
    """A bound from below of training blocks [first, stop): weights, gradients and moments, and what crosses them both ways."""
    weights = sum(p.nbytes for block in chain.blocks[first:stop] for p in block.named_parameters().values())
    return 4 * weights + 2 * sum(map(specs_bytes, chain.features[first : stop + 1]))
