"""Runs a module of Python and writes what its heap held at most.

`python -m benchmarks.support.heap_watch FILE PYTHON -m MODULE ARGUMENT ...`, so that it stands before any such command.

Resident memory is what the allocator keeps, holes included, and differs from run to run by more than a batch. What is in use is
what the program holds, and hardly differs. A thread looks every half millisecond, so it may miss what is held for less.
"""

import ctypes
import runpy
import sys
import threading
from pathlib import Path

LOOK_SECONDS = 0.0005


class _Figures(ctypes.Structure):
    """glibc's `struct mallinfo2`, all bytes or counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Figures


def held_bytes() -> int:
    """Return the bytes that this process has allocated and not freed, in its heap and in maps of their own."""
    figures = _mallinfo2()
    return int(figures.uordblks + figures.hblkhd)


class HeapWatch:
    """Looks at this process's heap on a thread of its own, until `end`."""

    def __init__(self) -> None:
        self.most = held_bytes()
        """The most bytes that were seen."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.most = max(self.most, held_bytes())


def main() -> None:
    """Run the program under the watch."""
    file, _, _, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    watch = HeapWatch()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        watch.end()
        Path(file).write_text(str(watch.most))


if __name__ == "__main__":
    main()
