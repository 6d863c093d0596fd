"""Rows of numbers from a table: `{ table = "readings.csv", label = "class" }`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_agent.data.labels import NOT_FINITE, labels_of, number_of
from edge_agent.data.rows import Broken, Chunk, RowsDataset, read_columns
from edge_agent.data.tensors import TensorDataset
from shared.errors import DataError


def table(
    path: str,
    label: str | Sequence[str],
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
) -> TensorDataset | RowsDataset:
    """Rows as float32 [C], each with its label; `isthmus[tables]` reads Parquet, and CSV quickly.

    path: of a CSV file in UTF-8 whose first row names the columns, or one that ends in `.parquet`. label: the column of the
    labels, whole numbers or names for classes, other numbers for a regression; or several columns of numbers, a label of
    float32 [L]. columns: those of the inputs; left out, all others. classes: names in the order of their numbers; left out,
    that of the alphabet. A row with an empty cell, or one that is no finite number, is broken.
    Raises DataError, naming the file.
    """
    place, many = Path(path).expanduser(), not isinstance(label, str)
    names: list[str] = [label] if isinstance(label, str) else list(label)
    broken = Broken(place)
    header, _ = read_columns(place, names, delimiter, broken)
    used = [name for name in header if name not in names] if columns is None else list(columns)
    if not used:
        raise DataError(f"{place} has no column beside {', '.join(names)}")
    numbers = [*used, *names] if many else used
    _, chunks = read_columns(place, [*numbers, *([] if many else names)], delimiter, broken, numbers)
    parts, cells = [], list[Any]()
    for chunk in chunks:
        parts.append(_numbers(chunk, numbers, broken))
        if not many:
            cells.extend(chunk.columns[-1])
    if not parts:
        raise DataError(f"{place} has no row beside its first")
    values = torch.from_numpy(np.concatenate(parts))
    inputs = values[:, : len(used)].contiguous()
    if many:
        labels, found = values[:, len(used) :].contiguous(), None
    else:
        labels, found = labels_of(place, names[0], cells, classes, broken)
    dataset = RowsDataset(inputs, labels, broken) if broken else TensorDataset(inputs, labels)
    dataset.classes = found
    return dataset


def _numbers(chunk: Chunk, names: Sequence[str], broken: Broken) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The first columns as float32 [N, C]; a broken row is zero."""
    rows = len(chunk.columns[0])
    values = np.empty((rows, len(names)), np.float32)
    for place, name in enumerate(names):
        column = chunk.columns[place]
        try:
            if isinstance(column[0], str) and "_" in "".join(column):
                raise ValueError  # one of them is no number, though Python's own reading takes it
            values[:, place] = (
                column if isinstance(column, np.ndarray) else np.fromiter(map(float, column), np.float64, rows)
            )
        except (ValueError, TypeError):
            values[:, place] = [np.nan if (number := number_of(cell)) is None else number for cell in column]
        if not np.isfinite(values[:, place]).all():
            for row in np.flatnonzero(~np.isfinite(values[:, place])).tolist():
                cell = column[row]
                what = "empty" if cell in (None, "") else f"{str(cell)[:40]!r}, {NOT_FINITE}"
                broken.note(chunk.first + row, f"column {name!r} is {what}")
                values[row, place] = 0.0
    return values
