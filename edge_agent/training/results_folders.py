"""The folders of a run's results: made before the training, and this run's alone until it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from edge_agent.config import OutputConfig
from shared.errors import ConfigError


@contextmanager
def results_folders(output: OutputConfig) -> Iterator[None]:
    """Find out before a training, and not after it, that its results have no place. A run that fails leaves no empty folder.

    Raises ConfigError, also where another process has the folder for its own results.
    """
    wanted = {"output.directory": output.directory, "output.trace": output.trace and output.trace.parent}
    made: list[Path] = []
    try:
        for key, folder in wanted.items():
            if folder is None:
                continue
            made += [each for each in (folder, *folder.parents) if not each.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as cause:
                raise ConfigError(f"{key}: folder {folder} cannot be made: {cause.strerror}") from cause
            if not os.access(folder, os.W_OK):
                raise ConfigError(f"{key}: folder {folder} cannot be written to")
        with _alone_in(output.directory):
            yield
    except BaseException:
        for folder in sorted(made, key=lambda each: len(each.parts), reverse=True):
            with suppress(OSError):  # it holds files of the run, or was never made
                folder.rmdir()
        raise


@contextmanager
def _alone_in(folder: Path | None) -> Iterator[None]:
    """Lock the folder itself, so that no file is left in it. A file system without locks admits every process."""
    if folder is None:
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            if not _is_locked_now(handle):
                raise ConfigError(
                    f"output.directory: another run writes its results to {folder}; choose another folder, or wait for it"
                )
        yield


def _is_locked_now(handle: int) -> bool:
    """Tell whether this process has the lock. Raises OSError where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
