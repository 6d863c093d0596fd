"""What every case is told, and what it tells."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True)
class Options:
    """How long and how often a case measures."""

    folder: Path
    """Its own, empty."""
    seconds: float | None
    """Of each measurement; None leaves that to the case."""
    repeats: int

    def tell(self, row: object) -> None:
        """Show what was measured as soon as it is."""
        print(row, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Result:
    """What a case found."""

    tables: Sequence[Table]
    rows: Sequence[object]
    """The figures behind the tables."""
