"""Files and folders that only their user can open, whatever umask the process has: 0600 and 0700. And the place for state.

Stored sessions contain weights, and weights reveal the data that they were trained on.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_UMASK = 0o077


def close_new_files() -> None:
    """Close all files that this process makes from now on to other users. For a process of our own only."""
    os.umask(_UMASK)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def close_folder(path: Path) -> None:
    """Close a folder that is open to others, unless it is another user's. Raises OSError."""
    if path.stat().st_mode & _UMASK:
        with suppress(PermissionError):
            path.chmod(FOLDER_MODE)


def open_file(path: Path, flags: int) -> int:
    """A handle of a file, made where it is missing and closed to others where it was open to them. Raises OSError."""
    handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(handle, FILE_MODE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for state: systemd's StateDirectory= for a service, the XDG state directory for a user."""
    if "STATE_DIRECTORY" in environ:
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "isthmus"
