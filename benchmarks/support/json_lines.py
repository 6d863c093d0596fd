"""Results as lines of JSON: one a line, appended when it is there, so that a broken run has lost only what was running."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import DataError

T = TypeVar("T")


def read_lines(path: Path, make: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    """Read all results of a file, in its order; none where there is no file.

    make: a result of the fields of a line. what: they are, for DataError, which a line raises that is none.
    """
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            results.append(make(json.loads(line)))
        except (ValueError, KeyError, TypeError) as cause:
            raise DataError(f"{path}, line {number} is no result of {what}: {cause}") from cause
    return results


def append_line(path: Path, result: Any) -> None:
    """Add a result, a dataclass, as one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
