"""The rows of a table in a file, CSV or Parquet, as columns of some rows at a time. Knows no meaning of a column."""

import csv
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from shared.errors import DataError, one_line

CHUNK_ROWS = 4096
_MOST_CELL = 1 << 24


class Chunk(NamedTuple):
    """Some rows that follow one another."""

    first: int
    """Index of the first of them; the header has none."""
    columns: list[Sequence[Any]]
    """Columns that were asked for: cells of text, or of any type otherwise. None in a row that has other columns."""


class Broken(dict[int, str]):
    """Reasons why rows cannot be used, by their indices."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def note(self, index: int, why: str) -> None:
        """Note what is wrong with a row, unless something is."""
        # As an editor or a spreadsheet counts, which have the header in row 1.
        self.setdefault(index, f"{self._path}: row {index + 2}: {why}")


def read_columns(
    path: Path, names: Sequence[str], delimiter: str, broken: Broken, numbers: Sequence[str] = ()
) -> tuple[list[str], Iterator[Chunk]]:
    """Return the names of all columns, and the rows with the columns that are asked for.

    numbers: those of the columns that should be numbers; a chunk may have them as float64. broken: takes rows with other
    columns.
    Raises DataError for a file that is no table, or has no such column.
    """
    if not path.is_file():
        raise DataError(f"{path} is no file; it must be a table in CSV or Parquet")
    if path.suffix == ".parquet":
        return _of_parquet(path, names)
    if len(delimiter) != 1:
        raise DataError(f"delimiter is {delimiter!r}; it must be one character")
    csv.field_size_limit(_MOST_CELL)
    rows = _rows_of(path, delimiter)
    header = next(rows, [])
    if not header or not all(header):
        of_pandas = header[:1] == [""] and all(header[1:])
        why = "; to_csv(path, index=False) of pandas writes no index, which has no name" if of_pandas else ""
        raise DataError(f"{path}: its first row must name all columns{why}")
    return header, _of_csv(path, rows, header, _places(path, header, names), delimiter, broken, numbers)


def _of_csv(
    path: Path,
    rows: Iterator[list[str]],
    header: Sequence[str],
    places: Sequence[int],
    delimiter: str,
    broken: Broken,
    numbers: Sequence[str],
) -> Iterator[Chunk]:
    if (columns := _at_once(path, [header[place] for place in places], delimiter, numbers)) is not None:
        yield Chunk(0, columns)
        return
    first = 0
    while chunk := list(islice(rows, CHUNK_ROWS)):
        if set(map(len, chunk)) != {len(header)}:
            for place, row in enumerate(chunk):
                if len(row) != len(header):
                    broken.note(
                        first + place, f"it has {len(row)} cells, and the first row names {len(header)} columns"
                    )
                    chunk[place] = [None] * len(header)  # type: ignore[list-item]
        cells = list(zip(*chunk, strict=True))
        yield Chunk(first, [cells[place] for place in places])
        first += len(chunk)


def _at_once(path: Path, names: Sequence[str], delimiter: str, numbers: Sequence[str]) -> list[Sequence[Any]] | None:
    """Read a whole table by pyarrow, ten times as quickly; None where it is not installed, or something is wrong."""
    if find_spec("pyarrow") is None or not names:
        return None
    import pyarrow
    from pyarrow import csv as arrow_csv

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {name: pyarrow.float64() if name in numbers else text for name in names}
    try:
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(use_threads=False),  # which cost more than they save
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False
            ),
            convert_options=arrow_csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[]),
        )
    except (OSError, pyarrow.ArrowException):
        return None  # read row by row, it is named
    if not table.num_rows:
        return None
    return [_cells(table.column(name)) if types[name] is text else table.column(name).to_numpy() for name in names]


def _cells(column: Any) -> Sequence[Any]:
    """Return the cells of a column of pyarrow's dictionaries; equal ones are one object."""
    whole = column.unify_dictionaries().combine_chunks()
    return np.array(whole.dictionary.to_pylist(), object)[whole.indices.to_numpy()]  # type: ignore[no-any-return]


def _rows_of(path: Path, delimiter: str) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            empty = 0
            try:
                for row in reader:
                    if row:
                        yield from repeat([], empty)  # those at the end are no rows
                        yield row
                        empty = 0
                    else:
                        empty += 1
            except csv.Error as cause:
                raise DataError(f"{path}: row {reader.line_num}: {cause}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise DataError(f"{path} cannot be read as text in UTF-8: {one_line(str(cause))}") from cause


def _of_parquet(path: Path, names: Sequence[str]) -> tuple[list[str], Iterator[Chunk]]:
    if find_spec("pyarrow") is None:
        raise DataError(f"{path}: reading Parquet needs pyarrow; install it with: pip install 'isthmus[tables]'")
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as cause:
        raise DataError(f"{path} is no Parquet file: {one_line(str(cause))}") from cause
    header = list(file.schema_arrow.names)
    wanted = [header[place] for place in _places(path, header, names)]

    def chunks() -> Iterator[Chunk]:
        first = 0
        try:
            for batch in file.iter_batches(CHUNK_ROWS, columns=list(dict.fromkeys(wanted))):
                yield Chunk(first, [batch.column(name).to_pylist() for name in wanted])
                first += batch.num_rows
        except (OSError, pyarrow.ArrowException) as cause:
            raise DataError(f"{path} cannot be read: {one_line(str(cause))}") from cause

    return header, chunks()


def _places(path: Path, header: Sequence[str], names: Sequence[str]) -> list[int]:
    for name in names:
        if header.count(name) != 1:
            what = "has no column" if name not in header else "has more than one column"
            close = get_close_matches(
                name.strip().lower(), known := {each.strip().lower(): each for each in header}, n=1
            )
            hint = f"; did you mean {known[close[0]]!r}?" if close and name not in header else ""
            shown = ", ".join(map(repr, header[:20]))
            raise DataError(f"{path} {what} {name!r}; it has {shown}{', …' if len(header) > 20 else ''}{hint}")
    return [header.index(name) for name in names]


class RowsDataset:
    """Samples in two tensors of which some are no samples, because their rows are broken."""

    def __init__(self, inputs: Tensor, labels: Tensor, broken: Broken) -> None:
        self._inputs = inputs
        self._labels = labels
        self.broken = broken
        """Reasons why samples are none, by their indices."""
        self.classes: list[str] | None = None
        self.vocabulary: list[str] | None = None
        """As of a `TensorDataset`."""

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        if index in self.broken:
            raise DataError(self.broken[index])
        label = self._labels[index]
        return self._inputs[index], label if label.dim() or label.is_floating_point() else int(label)
