"""Tables of numbers in CSV files with a header: columns by name, and a sentence for everything else."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shared.errors import PlanError

MOST_BYTES = 16 * 1024 * 1024


def rows_of(path: Path, what: str, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each row with its place in the file. needed: columns that it must have; others may be there.

    PlanError where the file cannot be read, lacks a column or has no row.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise PlanError(f"{path}: the {what} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: the {what} must be text in UTF-8") from error
    if len(raw) > MOST_BYTES:
        raise PlanError(f"{path}: the {what} takes more than {MOST_BYTES} bytes; cut it into parts")
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    columns = reader.fieldnames or []
    if missing := [name for name in needed if name not in columns]:
        raise PlanError(f"{path}: the {what} has no column {missing[0]}; it needs {', '.join(needed)}")
    is_empty = True
    try:
        for row in reader:
            is_empty = False
            yield f"{path}: line {reader.line_num}", row
    except csv.Error as error:
        raise PlanError(f"{path}: line {reader.line_num}: {error}") from error
    if is_empty:
        raise PlanError(f"{path}: the {what} is empty; it needs a row under its header")


def number(where: str, row: Mapping[str, str | None], column: str, least: float, most: float) -> float:
    """Read the number of a column. PlanError where it is none from `least` to `most`."""
    text = (row.get(column) or "").strip()
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise PlanError(f'{where}: {column} is "{text[:40]}"; it must be a number from {least:g} to {most:g}')
    return found


def optional_number(where: str, row: Mapping[str, str | None], column: str, least: float, most: float) -> float | None:
    """Read the same; None where the column or its value is missing."""
    return number(where, row, column, least, most) if (row.get(column) or "").strip() else None
