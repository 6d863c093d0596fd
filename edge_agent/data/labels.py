"""Labels of a table's column: classes by name or number, or numbers to predict."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.rows import Broken
from shared.errors import DataError

MOST_CLASSES = 10_000
_INFINITE = 2.0**128 - 2.0**103  # the least that rounds to infinity as float32
NOT_FINITE = "which is no finite number"


def labels_of(
    path: Path, name: str, cells: Sequence[Any], classes: Sequence[str] | None, broken: Broken
) -> tuple[Tensor, list[str] | None]:
    """Return the label of each row, and the names of the classes, where they have names.

    Whole numbers are classes, int64 [N]; numbers with fractions float32 [N]; other cells the places of their names among
    `classes`, which are all names in the order of the alphabet if left out. broken: takes rows without a label, or with one
    among numbers that is no finite one.
    """
    wrong: dict[Any, str] = dict.fromkeys((None, ""), "empty")
    known = dict.fromkeys(cells)  # a cell of many is looked at once
    names = [cell for cell in known if cell not in wrong]
    numbers = {cell: number_of(cell) for cell in names} if classes is None else {}
    if classes is None and None not in numbers.values():
        labels = {cell: number for cell, number in numbers.items() if number is not None and abs(number) < _INFINITE}
        dtype = torch.int64 if all(isinstance(number, int) for number in labels.values()) else torch.float32
        found, why = None, NOT_FINITE
    else:
        found = _names_in(path, name, names) if classes is None else list(map(str, classes))
        places = {one: place for place, one in enumerate(found)}
        labels, dtype = {cell: places[str(cell)] for cell in names if str(cell) in places}, torch.int64
        why = f"which is none of {', '.join(found[:20])}"
    wrong |= {cell: f"{str(cell)[:40]!r}, {why}" for cell in names if cell not in labels}
    if not wrong.keys().isdisjoint(known):
        for index, cell in enumerate(cells):
            if cell in wrong:
                broken.note(index, f"column {name!r} is {wrong[cell]}")
    return _filled(cells, labels, dtype), found


def number_of(cell: Any) -> int | float | None:
    """Return the number that a cell is, an int where it is whole and fits int64; None where it is none.

    Python's own reading takes "1_000", too, which is a name in a table.
    """
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        number = float(cell)
    except (ValueError, TypeError, OverflowError):
        return None
    if not number.is_integer():
        return number
    try:
        whole = int(cell)
    except ValueError:  # a whole number with a point, as text
        return number
    return whole if whole == number and -(2**63) <= whole < 2**63 else number


def _names_in(path: Path, name: str, cells: Sequence[Any]) -> list[str]:
    names = sorted(set(map(str, cells)))
    if len(names) > MOST_CLASSES:
        raise DataError(f"{path}: column {name!r} has {len(names)} different names; at most {MOST_CLASSES} are classes")
    return names


def _filled(cells: Sequence[Any], numbers: Mapping[Any, float], dtype: torch.dtype) -> Tensor:
    found = np.fromiter(
        map(numbers.get, cells, repeat(0)), np.float64 if dtype.is_floating_point else np.int64, len(cells)
    )
    return torch.from_numpy(found).to(dtype)
