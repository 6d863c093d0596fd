"""Options of every case, and its result."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True)
class Options:
    """The length and the number of a case's measurements."""

    folder: Path
    """Its own, empty."""
    seconds: float | None
    """Seconds of each measurement; None leaves that to the case."""
    repeats: int

    def tell(self, row: object) -> None:
        """Show what was measured as soon as it is."""
        print(row, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Result:
    """The findings of a case."""

    tables: Sequence[Table]
    rows: Sequence[object]
    """The figures behind the tables."""
