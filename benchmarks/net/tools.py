"""Needs of links and slow devices on the machine: root, the tools, and a clean end.

Knows nothing of what the tools are used for.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from shared.errors import ExitCode, IsthmusError

_STOP_SECONDS = 5.0
"""Time that a process has to end."""


class LinkError(IsthmusError):
    """A link or device that cannot be imitated on this machine."""

    exit_code = ExitCode.CONFIG


def missing_for(*tools: str) -> str | None:
    """Return the reason that this process cannot use `tools` as root, in a few words, or None when it can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"needs {' and '.join(absent)}, not installed here" if absent else None


def run_tool(*args: str, script: str | None = None) -> str:
    """Output of a command that must succeed; `script` goes to its standard input."""
    done = subprocess.run(
        args, input=script, stdin=None if script else subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise LinkError(f"'{' '.join(args)}' ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def stop(process: subprocess.Popen[Any]) -> None:
    """End a child: asked first, killed after 5 s."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each process that still exists; for what our children left behind in a place that is ours alone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Children:
    """The processes started through one namespace or device, so that they end with it."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []

    def popen(self, args: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen(args, **kwargs)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._processes):
            stop(process)


class Guard:
    """Turns the first SIGTERM into an exception, and holds any that comes once `hold` was called."""

    def __init__(self) -> None:
        self.received = False
        self._holding = False

    def hold(self) -> None:
        self._holding = True

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self.received = True
        if not self._holding:
            self._holding = True
            raise SystemExit(128 + signum)


@contextmanager
def sigterm_unwinds() -> Iterator[Guard]:
    """While open, SIGTERM unwinds the stack instead of ending the process, which then ends by the same signal.

    Call `hold` on what is yielded before the clean-up, so that the clean-up is not cut short. Only the main thread can
    set signal handlers; in another thread nothing is changed.
    """
    guard = Guard()
    if threading.current_thread() is not threading.main_thread():
        yield guard
        return
    previous = signal.signal(signal.SIGTERM, guard)
    try:
        yield guard
    finally:
        signal.signal(signal.SIGTERM, previous)
        if guard.received:
            os.kill(os.getpid(), signal.SIGTERM)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition()` is true; LinkError naming `what` when it stays false."""
    deadline = time.monotonic() + _STOP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise LinkError(f"{what} did not happen within {_STOP_SECONDS:g} s")
        time.sleep(0.01)
