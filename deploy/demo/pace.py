"""A process that is made slow without root: it stands still in turns, finer than a step of the demos."""

import os
import signal
import threading
from typing import Self

_SLICE_SECONDS = 0.04
"""Length of one cycle in which a process runs and stands still."""


class Pace:
    """A process that computes for a share of the time, and stands still for the rest; on the way out it runs as before."""

    def __init__(self, process: int) -> None:
        self.share = 1.0
        """The part of the time in which it computes; may be set at any time."""
        self._process, self._ended = process, threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._ended.wait(_SLICE_SECONDS * self.share):
            if self.share == 1.0:
                continue
            os.kill(self._process, signal.SIGSTOP)
            try:
                self._ended.wait(_SLICE_SECONDS * (1 - self.share))
            finally:
                os.kill(self._process, signal.SIGCONT)
