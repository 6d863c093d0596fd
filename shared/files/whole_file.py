"""Files that are there whole, or as they were before, however their writing ends. For results, at paths that a user chose."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from shared.errors import StorageError

_SCRATCH = ".partial"


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `target`, which takes its place when it lies on the disk. Raises StorageError."""
    write_together({target: write})


def write_together(
    writes: Mapping[Path, Callable[[Path], object]], aside: Path | None = None, outdated: Iterable[Path] = ()
) -> None:
    """Write several files: none takes its place before all of them lie on the disk.

    writes: by its place, what fills the file beside it. aside: the folder, made where it is needed, into which the files move
    that were in these places; None replaces them. outdated: files that move there too, because they belong to the former ones.
    Raises StorageError; then the places are as they were.
    """
    scratches = {target: target.with_name(target.name + _SCRATCH) for target in writes}
    moved: dict[Path, Path] = {}
    target = next(iter(writes))
    try:
        for target, write in writes.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            write(scratches[target])
            _sync(scratches[target])
        if aside is not None:
            for target in filter(Path.exists, (*writes, *outdated)):
                aside.mkdir(parents=True, exist_ok=True)
                moved[target] = target.rename(aside / target.name)
        for target, scratch in scratches.items():
            scratch.replace(target)
    except (OSError, SafetensorError) as cause:
        _move_back(moved)
        raise StorageError(f"{target} cannot be written: {getattr(cause, 'strerror', None) or cause}") from cause
    finally:
        for scratch in scratches.values():
            with suppress(OSError):  # a full disk wants its room back
                scratch.unlink(missing_ok=True)
    for folder in {target.parent for target in writes}:
        with suppress(OSError):  # some file systems cannot, and the files are in their places
            _sync(folder)


def _move_back(moved: Mapping[Path, Path]) -> None:
    for place, kept in moved.items():
        with suppress(OSError):
            kept.rename(place)
            kept.parent.rmdir()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
