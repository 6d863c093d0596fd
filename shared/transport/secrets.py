"""Files that hold a secret, and files that must be there: read with one sentence for everything that can be wrong."""

import stat
from pathlib import Path

from shared.errors import ConfigError


def read_file(path: Path, key: str) -> bytes:
    """The bytes of a file that the configuration's `key` names. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ConfigError(f"{key}: {path} cannot be read: {cause.strerror}") from cause


def read_secret(path: Path, key: str) -> bytes:
    """The same for a file that must be closed to everyone but its owner and group. Raises ConfigError."""
    data = read_file(path, key)
    if path.stat().st_mode & stat.S_IRWXO:
        raise ConfigError(f"{key}: {path} holds a secret and is open to every user of this machine; chmod 600 it")
    return data
