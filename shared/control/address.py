"""The address at which a process of ours is controlled: a unix socket, or a port that only this machine reaches.

A socket is held by a lock beside it: two processes never have the same, and one that a killed process has left is used again.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shared.errors import ListenError
from shared.files.private_files import make_folder, open_file, state_directory

_UNIX = "unix:"
MOST_PROCESSES = 8
"""Largest number of processes of one program and user that have sockets without being given any."""


class TakenError(ListenError):
    """Another process has the socket."""


def control_targets(listen: str, name: str, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Convert a configured address to gRPC's form, unix:/path or host:port, for either end. A process has the first
    that is free.

    listen: anything but "none". name: of the command; each has sockets of its own where the address is "auto".
    """
    if listen != "auto":
        return (listen,)
    if "RUNTIME_DIRECTORY" in environ:
        folder = environ["RUNTIME_DIRECTORY"].partition(":")[0]
    else:
        folder = f"{state_directory(environ)}/{name}"
    names = ["control.sock", *(f"control-{number}.sock" for number in range(2, MOST_PROCESSES + 1))]
    return tuple(f"{_UNIX}{folder}/{each}" for each in names)


def find_targets(listen: str, name: str) -> list[str]:
    """Find the addresses of a command's process; several where several processes of this user may be meant.

    Where "auto" is meant and no process of this user is there, it is the service's on this machine.
    """
    own = control_targets(listen, name)
    if listen != "auto":
        return [*own]
    services = f"{_UNIX}/run/{name}/control.sock"
    return [target for target in own if _answers(target)] or [services if _answers(services) else own[0]]


def described_target(target: str) -> str:
    """A target with the process that listens there and its working folder, as far as the system tells."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.connect(target.removeprefix(_UNIX))
            process, _, _ = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"{target} (process {process}, in {Path(f'/proc/{process}/cwd').readlink()})"
    except OSError:
        return target


def _answers(target: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        return door.connect_ex(target.removeprefix(_UNIX)) == 0


@contextmanager
def held_first(targets: Sequence[str]) -> Iterator[tuple[str, Path | None]]:
    """Hold the first of some targets that no other process has; yields it too. Otherwise as `held`."""
    with ExitStack() as stack:
        for target in targets[:-1]:
            with suppress(TakenError):
                path = stack.enter_context(held(target))
                break
        else:
            target = targets[-1]
            path = stack.enter_context(held(target))
        yield target, path


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
            raise TakenError(
                f"control.listen: another process is controlled at {target}; give this one another socket, or none"
            ) from None
        try:
            yield path
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
