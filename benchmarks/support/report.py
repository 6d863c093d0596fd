"""Figures as people read them and as a file keeps them."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.machine import machine
from shared.errors import DataError


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    lower_quartile: float
    upper_quartile: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one value or more."""
        lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)

    def scaled(self, factor: float) -> "Spread":
        """Each times `factor`."""
        return Spread(self.median * factor, self.lower_quartile * factor, self.upper_quartile * factor)

    def show(self, scale: float = 1.0, digits: int = 1) -> str:
        """'median (lower to upper)', each times `scale`."""
        median, lower, upper = (f"{value:.{digits}f}" for value in asdict(self.scaled(scale)).values())
        return f"{median} ({lower} to {upper})"


def seconds_per_step(ends: Sequence[float], warm_up: int, tail: int, segment: int) -> list[float]:
    """Seconds per step of each stretch of `segment` steps, of the moments at which steps ended.

    warm_up, tail: steps at the beginning and at the end that no stretch reaches into, where the pipeline fills and drains.
    """
    steady = ends[warm_up : len(ends) - tail]
    return [(steady[last] - steady[last - segment]) / segment for last in range(segment, len(steady), segment)]


def mean_and(values: Sequence[float], form: str, *, of_mean: bool) -> str:
    """The mean, and behind it the standard error of that mean or the values' standard deviation, given two values.

    form: of the mean, as `+.2f`; the other has no sign.
    """
    if not values:
        return ""
    spread = ""
    if len(values) > 1:
        deviation = statistics.stdev(values)
        spread = f" ± {deviation / len(values) ** 0.5 if of_mean else deviation:{form.removeprefix('+')}}"
    return f"{statistics.mean(values):{form}}{spread}"


def write_json(path: Path | None, benchmark: str, **content: Any) -> None:
    """Store results with the machine they were measured on; nothing is done without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"benchmark": benchmark, "machine": machine(), **content}
    path.write_text(json.dumps(kept, indent=1, default=asdict) + "\n")


def replaced(document: str, text: str, name: str, begin: str, end: str) -> str:
    """`document` with `text` between two marks. Raises DataError unless both are in it, in order."""
    before, found_begin, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise DataError(f"{name} has no place for the tables; it must have the lines {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
