"""Notes of a session's process for the next one, should it be killed: SIGKILL leaves no time to say anything.

A process keeps the count of its steps in a page that it shares with the kernel, which has it after the process is gone; to
write there is no call. A process that ends by itself removes the page. After a crash of the machine itself the page is of
another boot, and counts for nothing.
"""

import mmap
import os
from array import array
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from shared.files.private_files import open_file

_log = structlog.get_logger(__name__)
_NAME, _PROC = "last-moments", Path("/proc")
STEPS, IS_BUSY = 0, 1
"""Numbers that change as the run goes on: steps that all workers have done, and 1 while steps or evaluations are due."""
_BOOT, _OOM_KILLS, _IS_KNOWN, _KILLED_STEPS, _WAS_OOM = 2, 4, 5, 6, 7
"""The boot, in two numbers; the processes that the kernel had killed for want of memory; and the kill before."""
_NUMBERS = 8
_MOST = 2**64 - 1


class Kill(NamedTuple):
    """The end of a process that did not end by itself."""

    steps: int
    """Steps that all workers had done."""
    for_memory: bool
    """True if the kernel has killed a process for want of memory meanwhile."""


@contextmanager
def last_moments(folder: Path, before: Kill | None, proc: Path = _PROC) -> Iterator[MutableSequence[int]]:
    """Give the numbers of this process, by their places, in the folder of its session, while the body runs.

    before: how the process before this one was killed; None where it ended by itself. On a full disk nobody is told.
    """
    killed = (0, 0, 0) if before is None else (1, before.steps, int(before.for_memory))
    page = array("Q", (0, 0, *_boot(proc), _oom_kills(proc), *killed)).tobytes()
    try:
        descriptor = open_file(folder / _NAME, os.O_RDWR)
        try:
            os.pwrite(
                descriptor, page, 0
            )  # before it is mapped: to write to a hole of a full disk would end the process
            mapped = mmap.mmap(descriptor, len(page))
        finally:
            os.close(descriptor)
    except OSError as cause:
        _log.warning("a kill of this process could not be told", reason=cause.strerror)
        yield [0, 0]
        return
    numbers: Any = memoryview(mapped).cast("Q")
    try:
        yield numbers
    finally:
        forget_kills(folder)  # the process ends by itself


def kills(folder: Path, proc: Path = _PROC) -> list[Kill]:
    """Read how the last process of a session was killed, and the one before it if it was too, the last first.

    Empty where the last one has ended by itself, or the machine was started again since.
    """
    try:
        page = (folder / _NAME).read_bytes()
    except OSError:
        return []
    if len(page) != 8 * _NUMBERS:
        return []
    numbers = memoryview(page).cast("Q")
    if tuple(numbers[_BOOT : _BOOT + 2]) != _boot(proc):
        return []
    for_memory = _oom_kills(proc) > numbers[_OOM_KILLS]
    if not (for_memory or numbers[IS_BUSY]):
        return []
    last = Kill(numbers[STEPS], for_memory)
    return [last, Kill(numbers[_KILLED_STEPS], bool(numbers[_WAS_OOM]))] if numbers[_IS_KNOWN] else [last]


def forget_kills(folder: Path) -> None:
    """Count no kill before this moment."""
    with suppress(OSError):
        (folder / _NAME).unlink(missing_ok=True)


def _boot(proc: Path) -> tuple[int, int]:
    try:
        number = int((proc / "sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)
    except (OSError, ValueError):
        return 0, 0
    return number & _MOST, number >> 64 & _MOST


def _oom_kills(proc: Path) -> int:
    """Count the processes that the kernel has killed for want of memory since it began; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in (proc / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
