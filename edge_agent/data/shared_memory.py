"""Room in /dev/shm, through which the processes of `data.workers` hand their batches over. A container has 64 MB there."""

import shutil
import sys
from pathlib import Path

from shared.control.formatting import size
from shared.errors import DataError

AHEAD = 2
"""Batches that torch has each process read ahead."""
REMEDY = "give the container more (docker run --shm-size=1g), or set data.workers = 0"


def shared_memory_left(folder: Path = Path("/dev/shm")) -> int:
    """Return the bytes that are free there; no bound where there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return sys.maxsize


def check_shared_memory(workers: int, batch_bytes: int, free: int) -> None:
    """Refuse processes whose batches find no room: torch would end by a bus error. Raises DataError."""
    needed = AHEAD * workers * batch_bytes
    if free < needed:
        raise DataError(
            f"data.workers = {workers}: batches that are read ahead take {size(needed)} of /dev/shm, which has {size(free)} "
            f"left; {REMEDY}"
        )


def is_lack_of_room(reason: str) -> bool:
    """Tell whether torch's words for the end of such a process mean that /dev/shm was full."""
    return any(words in reason for words in ("Bus error", "shared memory", "No space left on device"))
