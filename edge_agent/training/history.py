"""The history of a run: its rows, and `history.csv`, in which they are a table. Knows numbers and files only.

There is a row at the end of each epoch, at each evaluation and at the last step, so rows divide the steps among them.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from edge_agent.sessions.finished import SUMMARY, folder_aside
from shared.errors import ConfigError, StorageError
from shared.files.whole_file import write_whole

_log = structlog.get_logger(__name__)
HISTORY = "history.csv"


class HistoryRow(NamedTuple):
    """One row. All but `seconds`, the bytes and the rate are the same however often a run is interrupted."""

    step: int
    """Steps that were done."""
    epoch: int
    """Number of the epoch of the last of them, from 1."""
    samples: int
    """Samples of these steps."""
    train_loss: float | None
    """Mean loss of the batches since the row before; None where there was no batch."""
    test_loss: float | None
    """Mean loss of the test set; None without an evaluation at this step, as for `accuracy`."""
    accuracy: float | None
    """Share of correct samples of the test set; None, too, if the loss is not of classes."""
    learning_rate: float | None
    """Rate of the last step; None where it is not known."""
    edge_blocks: int
    """Blocks that the device runs or owns: of two workers on one cut, the cut."""
    staleness: int
    """Limit K."""
    bits: int
    """Bits of an element of a feature on the device's link."""
    seconds: float
    """Time that the run has trained, in all its processes."""
    bytes_up: int
    bytes_down: int
    """Bytes that the run has sent and received."""
    samples_per_second: float
    """Rate since the row before, evaluations included."""
    skipped: int | None = None
    """Samples that could not be read in these steps, and had others in their places; None where one such ends the run."""
    metrics: Mapping[str, float] = {}
    """Values of `training.metrics`, by their names; a column each."""


_FIXED = HistoryRow._fields[:-1]


def metrics_of(rows: Iterable[HistoryRow]) -> list[str]:
    """List the metrics that some row has."""
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def text_of(rows: Iterable[HistoryRow], metrics: Sequence[str]) -> str:
    """Write rows as lines of CSV, with every bit of each number and these metrics; None is an empty cell."""
    return _lines([*row[:-1], *(row.metrics.get(name) for name in metrics)] for row in rows)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue()


def write_history(directory: Path, rows: Sequence[HistoryRow]) -> None:
    """Have `history.csv` hold these rows, whole. Other rows of an earlier result go aside with it. Raises StorageError."""
    with suppress(ConfigError):
        if read_history(directory) == rows:
            return
    path, metrics = directory / HISTORY, metrics_of(rows)
    text = _lines([[*_FIXED, *metrics]]) + text_of(rows, metrics)
    try:
        _put_aside(directory)
    except OSError as cause:
        raise StorageError(f"{path} cannot be put aside: {cause.strerror}") from cause
    write_whole(path, lambda scratch: scratch.write_text(text))


class HistoryFile:
    """`history.csv` of a run while it trains. Used on one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory: Path | None = directory
        """None once a disk had no room for it: that ends no run."""
        self._rows: Sequence[HistoryRow] = ()
        """Rows that this process has written."""

    def unfinished(self) -> list[HistoryRow]:
        """Read the rows that an earlier process of a run without an end has left; none where there are none."""
        if self._directory is None or _is_finished(self._directory):
            return []
        with suppress(ConfigError):
            return read_history(self._directory)
        return []

    def hold(self, rows: Sequence[HistoryRow]) -> None:
        """Have the file hold these rows, the newest behind the others where these are there. A failure is logged."""
        if self._directory is None:
            return
        before, metrics = rows[:-1], metrics_of(rows)
        try:
            if before and before == self._rows and metrics == metrics_of(before):
                with (self._directory / HISTORY).open("a") as lines:
                    lines.write(text_of(rows[-1:], metrics))
            else:
                write_history(self._directory, rows)
            self._rows = rows
        except (OSError, StorageError) as cause:
            _log.warning("the history is not written; it is in the summary at the end", reason=str(cause))
            self._directory = None


def _is_finished(directory: Path) -> bool:
    """Tell whether the history belongs to the result of a finished run, which is written after the last of its rows."""
    path, summary = directory / HISTORY, directory / SUMMARY
    return path.exists() and summary.exists() and path.stat().st_mtime_ns <= summary.stat().st_mtime_ns


def _put_aside(directory: Path) -> None:
    """Put a history aside that belongs to the result of a finished run."""
    if _is_finished(directory):
        aside = folder_aside(directory)
        assert aside is not None, "the summary is there"
        aside.mkdir(parents=True, exist_ok=True)
        (directory / HISTORY).rename(aside / HISTORY)


def read_history(directory: Path) -> list[HistoryRow]:
    """Read the rows of `history.csv` in a folder of results. Raises ConfigError for a file that is none."""
    path = directory / HISTORY
    try:
        with path.open(newline="") as lines:
            header, *found = csv.reader(lines)
            if tuple(header[: len(_FIXED)]) != _FIXED:
                raise ValueError("its first line names other columns")
            return [_parsed(header, cells) for cells in found]
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
    except (ValueError, TypeError, csv.Error) as cause:
        raise ConfigError(f"{path} is no history of a run: {cause}") from cause


_WHOLE = {name for name, kind in HistoryRow.__annotations__.items() if kind in (int, int | None)}


def _parsed(columns: Sequence[str], cells: Sequence[str]) -> HistoryRow:
    values: dict[str, Any] = {
        name: None if cell == "" else int(cell) if name in _WHOLE else float(cell)
        for name, cell in zip(columns, cells, strict=True)
    }
    metrics = {name: values.pop(name) for name in columns[len(_FIXED) :]}
    return HistoryRow(**values, metrics={name: value for name, value in metrics.items() if value is not None})
