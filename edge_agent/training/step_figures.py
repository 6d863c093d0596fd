"""The figures of the newest steps of a group's member, step by step, from before it gives anything of a step.

A group goes back, or goes on without a member that was killed, to any step between two rows of the history. With these figures
the next row has the losses and samples of all of its steps. They are in a page that is shared with the kernel, beside
`history.csv`, so that they outlive the process; a member that keeps no history has them in memory.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import structlog

from edge_agent.sessions.finished import SUMMARY
from shared.files.private_files import open_file

_log = structlog.get_logger(__name__)
_NAME = ".history-steps"
MOST_STEPS = 32_768
"""Newest steps that are kept, in a MiB."""
_RECORD = np.dtype([("next_step", "<i8"), ("loss", "<f8"), ("samples", "<i8"), ("skipped", "<i8")])
_BYTES = MOST_STEPS * _RECORD.itemsize


class StepFigure(NamedTuple):
    """The figures of one step."""

    loss: float
    samples: int
    skipped: int
    """Samples that could not be read in it."""


class StepFigures:
    """The figures of the newest steps; none before `keep`. Used on the event loop."""

    def __init__(self) -> None:
        self._records: Any = None
        self._path: Path | None = None

    @property
    def is_kept(self) -> bool:
        """Tell whether figures are kept."""
        return self._records is not None

    def keep(self, directory: Path | None) -> None:
        """Keep figures from here on, beside those that an earlier process of an unfinished run has left in the folder.

        Without a folder, and on a full disk, they are in memory.
        """
        self._records = np.zeros(MOST_STEPS, _RECORD)
        if directory is None:
            return
        path = directory / _NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not _goes_on(path, directory / SUMMARY):
                with os.fdopen(open_file(path, os.O_WRONLY | os.O_TRUNC), "wb") as page:
                    page.write(bytes(_BYTES))  # to write to a hole of a full disk, mapped, would end the process
            self._records, self._path = np.memmap(path, _RECORD, "r+"), path
        except OSError as cause:
            _log.warning("a kill of this process would leave gaps in the history", reason=cause.strerror)

    def note(self, step: int, figure: StepFigure) -> None:
        """Note the figures of a step that is under way or done."""
        if self._records is not None:
            self._records[step % MOST_STEPS] = (step + 1, *figure)

    def forget_from(self, step: int) -> None:
        """Forget a step that comes once more, and all after it."""
        if self._records is not None:
            self._records[self._records["next_step"] > step] = 0

    def between(self, first: int, stop: int) -> Iterator[StepFigure]:
        """Yield the figures of the steps from one on until before another, where they are known."""
        if self._records is None:
            return
        for step in range(max(first, stop - MOST_STEPS), stop):
            next_step, *figure = self._records[step % MOST_STEPS].item()
            if next_step == step + 1:
                yield StepFigure(*figure)

    def end(self) -> None:
        """Leave nothing for another process: the history is whole."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def _goes_on(path: Path, summary: Path) -> bool:
    """Tell whether a page has figures of a run that has no result yet."""
    if not path.exists() or path.stat().st_size != _BYTES:
        return False
    return not summary.exists() or summary.stat().st_mtime_ns < path.stat().st_mtime_ns
