"""A hook that records every path that a Python process writes, creates, renames or removes: one line each, in the file WATCHED.

Python runs this at its start wherever this folder is on PYTHONPATH. It knows what Python code asks the system for, also in
libraries, and also of files that are gone when somebody looks.
"""

import os
import sys

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.chmod": (0, 2),
    "os.chown": (0, 3),
    "os.link": (1, 3),
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.symlink": (1, 2),
    "os.truncate": (0, None),
    "os.utime": (0, 3),
    "shutil.rmtree": (0, 1),
}
"""Indices of the arguments of each event: the path, and the folder that it is relative to."""


def _absolute(path: object, folder: object = None) -> str | None:
    """The path as it lies in the file system; None for a handle, whose opening was seen."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)  # noqa: PTH115, PTH118
    parent, name = os.path.split(os.path.abspath(text))  # noqa: PTH100
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def _changed(event: str, arguments: tuple) -> list[str | None]:
    if event == "open":
        path, _, flags = arguments
        return [_absolute(path)] if isinstance(flags, int) and flags & _FLAGS else []
    if event == "os.rename":
        source, target, source_folder, target_folder = arguments
        return [_absolute(source, source_folder), _absolute(target, target_folder)]
    if event in _CHANGES:
        at, folder = _CHANGES[event]
        relative = arguments[folder] if folder is not None and folder < len(arguments) else None
        return [_absolute(arguments[at], relative)]
    return []


def _watch(handle: int) -> None:
    def hear(event: str, arguments: tuple) -> None:
        for path in _changed(event, arguments):
            if path is not None:
                os.write(handle, f"{event} {path!r}\n".encode(errors="backslashreplace"))

    sys.addaudithook(hear)


if "WATCHED" in os.environ:
    _watch(os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
