"""The lock of a folder: one process at a time has it, until it lets it go or ends, however it ends.

It is an open file description lock on an empty file of the folder, so the kernel frees it with the process.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import IO

from shared.errors import StorageError
from shared.files.private_files import open_file

_LOCK = "lock"
_LOCK_FORMAT = "hhqqi"
"""The fields of C's struct flock: type, whence, start, length, process."""
_WHOLE_FILE = struct.pack(_LOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_folder(path: Path) -> IO[bytes] | None:
    """Take the lock of a folder. Raises StorageError.

    Returns a handle that holds the lock until it is closed or the process ends; None where another process holds it.
    """
    try:
        handle = os.fdopen(open_file(path / _LOCK, os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as cause:
        raise StorageError(f"{path / _LOCK} cannot be opened: {cause.strerror}") from cause
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        handle.close()
        return None
    os.set_inheritable(handle.fileno(), False)
    return handle


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock of a folder. Raises StorageError.

    It only asks: to take the lock would keep out a process that wants it at this moment.
    """
    try:
        with (path / _LOCK).open("rb") as handle:
            answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    except FileNotFoundError:
        return False
    except OSError as cause:
        raise StorageError(f"{path / _LOCK} cannot be opened: {cause.strerror}") from cause
    found: int = struct.unpack(_LOCK_FORMAT, answer)[0]
    return found != fcntl.F_UNLCK
