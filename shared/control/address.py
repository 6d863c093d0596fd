"""Where a process of ours is controlled from: a unix socket, or a port that only this machine reaches.

A socket is held by a lock beside it: two processes never have the same, and one that a killed process has left is used again.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import ListenError
from shared.files.private_files import make_folder, open_file
from shared.files.state_directory import state_directory

_UNIX = "unix:"


def control_target(listen: str, name: str, environ: Mapping[str, str] = os.environ) -> str:
    """What a configured address means to gRPC, on either end: unix:/path or host:port.

    listen: anything but "none". name: of the command; each has a socket of its own where the address is "auto".
    """
    if listen != "auto":
        return listen
    if "RUNTIME_DIRECTORY" in environ:
        return f"{_UNIX}{environ['RUNTIME_DIRECTORY'].partition(':')[0]}/control.sock"
    return f"{_UNIX}{state_directory(environ)}/{name}/control.sock"


def find_target(listen: str, name: str) -> str:
    """The same for a command: where "auto" is meant and this user's own process is not there, the service's on this machine."""
    own = control_target(listen, name)
    services = Path("/run") / name / "control.sock"
    if listen == "auto" and not Path(own.removeprefix(_UNIX)).exists() and services.exists():
        return f"{_UNIX}{services}"
    return own


@contextmanager
def held(target: str) -> Iterator[Path | None]:
    """Keep others away from a target's socket while the block runs, and remove it afterwards; yields its path, if it is one.

    Raises ListenError when another process has it or its folder cannot be made.
    """
    if not target.startswith(_UNIX):
        yield None
        return
    path = Path(target.removeprefix(_UNIX))
    lock = path.with_name(path.name + ".lock")
    try:
        make_folder(path.parent)
        handle = os.fdopen(open_file(lock, os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as cause:
        raise ListenError(f"control.listen: {lock} cannot be written: {cause.strerror}") from cause
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ListenError(
                f"control.listen: another process is controlled at {target}; give this one another socket, or none"
            ) from None
        try:
            yield path
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
