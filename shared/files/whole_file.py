"""A file that is there whole, or as it was before, however its writing ends. For results, at a path that a user chose."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from shared.errors import StorageError


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `target`, which takes its place when it lies on the disk. Raises StorageError."""
    scratch = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(scratch)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.replace(target)
    except (OSError, SafetensorError) as cause:
        raise StorageError(f"{target} cannot be written: {getattr(cause, 'strerror', None) or cause}") from cause
    finally:
        with suppress(OSError):  # a full disk wants its room back
            scratch.unlink(missing_ok=True)
