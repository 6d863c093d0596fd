"""Files that hold a secret, and files that must be there: read with one sentence for everything that can be wrong."""

import os
import stat
from pathlib import Path

from shared.errors import ConfigError


def read_file(path: Path, key: str) -> bytes:
    """The bytes of a file that the configuration's `key` names. Raises ConfigError."""
    return _read(path, key)[0]


def read_secret(path: Path, key: str) -> bytes:
    """The same for a file that must be closed to everyone but its owner and group. Raises ConfigError."""
    data, mode = _read(path, key)
    if mode & stat.S_IRWXO:
        raise ConfigError(f"{key}: {path} holds a secret and is open to every user of this machine; chmod 600 it")
    return data


def _read(path: Path, key: str) -> tuple[bytes, int]:
    """The bytes of a file and the mode of that very file, which another may replace at any time."""
    try:
        with path.open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mode
    except OSError as cause:
        raise ConfigError(f"{key}: {path} cannot be read: {cause.strerror}") from cause
