"""Labels of a table's column: classes by name or number, or numbers to predict."""

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.rows import Broken
from shared.errors import DataError

MOST_CLASSES = 10_000


def labels_of(
    path: Path, name: str, cells: Sequence[Any], classes: Sequence[str] | None, broken: Broken
) -> tuple[Tensor, list[str] | None]:
    """Return the label of each row, and the names of the classes, where they have names.

    Whole numbers are classes, int64 [N]; numbers with fractions float32 [N]; other cells the places of their names among
    `classes`, which are all names in the order of the alphabet if left out. broken: takes rows without a label.
    """
    known = dict.fromkeys(cells)  # a cell of many is looked at once
    if None in known or "" in known:
        for index, cell in enumerate(cells):
            if cell in (None, ""):
                broken.note(index, f"column {name!r} is empty")
    names = [cell for cell in known if cell not in (None, "")]
    if classes is None:
        for kind, dtype in ((int, torch.int64), (float, torch.float32)):
            try:
                numbers = {cell: kind(cell) for cell in names}
            except ValueError:
                continue
            if kind is float or all(number == float(cell) for cell, number in numbers.items()):
                return _filled(cells, numbers, dtype), None
        classes = sorted(set(map(str, names)))
        if len(classes) > MOST_CLASSES:
            raise DataError(
                f"{path}: column {name!r} has {len(classes)} different names; at most {MOST_CLASSES} are classes"
            )
    numbered = {cell: number for number, cell in enumerate(classes)}
    if unknown := {cell for cell in names if str(cell) not in numbered}:
        for index, cell in enumerate(cells):
            if cell in unknown:
                broken.note(
                    index, f"column {name!r} is {str(cell)[:40]!r}, which is none of {', '.join(list(classes)[:20])}"
                )
    return _filled(cells, {cell: numbered.get(str(cell), 0) for cell in names}, torch.int64), list(classes)


def _filled(cells: Sequence[Any], numbers: dict[Any, Any], dtype: torch.dtype) -> Tensor:
    found = np.fromiter(
        map(numbers.get, cells, repeat(0)), np.float64 if dtype.is_floating_point else np.int64, len(cells)
    )
    return torch.from_numpy(found).to(dtype)
