"""Readers of recorded traces, as their authors publish them; the first line tells the format.

- Mahimahi (.xz too): a millisecond a line, each a chance to deliver 1500 bytes; the last line is the period.
- The Ghent 4G log: epoch ms, elapsed ms, latitude, longitude, bytes, interval ms.
- CSV: second, bytes per second; a row holds until the next one. A header line may name another unit, as
mbit_per_second;
  one that names none that is known is refused.
- 5G uplink lists: blocks "Run n" of Mbit/s every 100 ms, or of times and rates, first of 5G and then of LTE.
"""

import lzma
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_agent.planning.traces import Trace
from shared.errors import PlanError

MAHIMAHI_BYTES = 1500
BIN_SECONDS = 0.1
"""Window into which single deliveries are gathered; also the sampling of the 5G lists."""

MAX_TEXT_BYTES = 256 * 1024 * 1024
MAX_SECONDS = 30 * 24 * 3600
"""Limits far above any trace we know, and low enough that a broken or hostile file does not fill the memory."""

_PREFIXES = {"": 1.0, "k": 1e3, "kilo": 1e3, "m": 1e6, "mega": 1e6, "g": 1e9, "giga": 1e9}
_UNIT = re.compile(
    r"(?:\w+[\s_])?(|k|kilo|m|mega|g|giga)(bits?|bytes?|(?-i:b)(?=ps))(?:[\s_]?per[\s_]?s(?:ec(?:ond)?)?|/s|ps)?",
    re.ASCII | re.IGNORECASE,
)
"""Unit of a column, with a word before it or none: uplink_mbit_per_second, bytes per second, Mbit/s."""

Lines = list[tuple[int, str]]
"""Lines that are not blank, each with its number in the file."""


def load_trace(path: Path, run: int | None = None) -> Trace:
    """Read one direction of a link from a file in any of the formats above.

    run: number of a run in a 5G list, the first when None; no other format has runs.
    PlanError when the file cannot be read, is of no known format, is empty or broken.
    """
    lines = [(number, line.strip()) for number, line in enumerate(_read(path).splitlines(), start=1) if line.strip()]
    if not lines:
        raise PlanError(f"{path}: the trace is empty; it needs one line or more")
    first = lines[0][1]
    if first.startswith(("#", "Run")):
        return _read_5g_list(lines, path, run or 1)
    if run is not None:
        raise PlanError(f"{path}: run {run} was asked for, but only lists of 5G runs hold several")
    return _reader_for(first, path)(lines, path)


def _read(path: Path) -> str:
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                raw = file.read(MAX_TEXT_BYTES + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            raise PlanError(f"{path}: the trace holds more than {MAX_TEXT_BYTES} bytes; cut it into parts")
        return raw.decode("ascii")
    except OSError as error:
        raise PlanError(f"{path}: the trace cannot be read: {error.strerror or error}") from error
    except (lzma.LZMAError, EOFError) as error:
        raise PlanError(f"{path}: the trace is not a whole xz file: {error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: the trace is not text; a .xz file must keep its ending") from error


def _reader_for(first: str, path: Path) -> Callable[[Lines, Path], Trace]:
    if first.count(",") == 1:
        return _read_csv
    fields = len(first.split())
    if fields == 1:
        return _read_mahimahi
    if fields == 6:
        return _read_ghent
    raise PlanError(
        f'{path}: "{first[:60]}" begins no trace that is known; write milliseconds (Mahimahi), "second,bytes per second" '
        "(CSV), or the six columns of the Ghent log"
    )


def _numbers(line: str, separator: str | None) -> list[float] | None:
    """Return the finite numbers of a line; None when a field of it is not one."""
    try:
        numbers = [float(field) for field in line.split(separator)]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _table(lines: Lines, columns: int, separator: str | None, path: Path) -> NDArray[np.float64]:
    """Return the numbers of all lines, shape (lines, columns)."""
    rows = []
    for number, line in lines:
        row = _numbers(line, separator)
        if row is None or len(row) != columns:
            raise PlanError(
                f'{path}: line {number} is "{line[:60]}"; it must hold {columns} finite number{"s"[: columns - 1]}'
            )
        rows.append(row)
    return np.array(rows)


def _read_mahimahi(lines: Lines, path: Path) -> Trace:
    stamps = _table(lines, 1, None, path)[:, 0] / 1000
    if (np.diff(stamps) < 0).any() or stamps[0] < 0:
        raise PlanError(f"{path}: the milliseconds of a trace must be 0 or more and must not fall")
    period = float(stamps[-1])
    if not 0 < period <= MAX_SECONDS:
        raise PlanError(
            f"{path}: the trace ends at {period} s; its last line is its length, above 0 and at most {MAX_SECONDS} s"
        )
    edges = np.append(np.arange(0.0, period - 1e-9, BIN_SECONDS), period)
    deliveries, _ = np.histogram(stamps, edges)
    return Trace(edges.tolist(), (deliveries * MAHIMAHI_BYTES * 8 / np.diff(edges)).tolist(), str(path))


def _read_ghent(lines: Lines, path: Path) -> Trace:
    table = _table(lines, 6, None, path)
    carried_bytes, durations = table[:, 4], table[:, 5] / 1000
    if (durations <= 0).any():
        raise PlanError(f"{path}: the interval of each line, its last column, must be above 0 ms")
    return Trace.of_durations(durations.tolist(), (carried_bytes * 8 / durations).tolist(), str(path))


def _read_csv(lines: Lines, path: Path) -> Trace:
    has_header = _numbers(lines[0][1], ",") is None
    unit_bits = _unit_bits(lines[0][1], path) if has_header else 8.0
    if has_header and len(lines) == 1:
        raise PlanError(f"{path}: the trace is empty; it needs a row below its header")
    table = _table(lines[has_header:], 2, ",", path)
    durations = np.diff(table[:, 0])
    if (durations <= 0).any():
        raise PlanError(f"{path}: the seconds of a trace, its first column, must rise")
    last = durations[-1] if len(durations) else 1.0
    return Trace.of_durations([*durations.tolist(), float(last)], (table[:, 1] * unit_bits).tolist(), str(path))


def _unit_bits(header: str, path: Path) -> float:
    """Return the bits per second in one unit of a CSV's second column, by its header."""
    match = _UNIT.fullmatch(header.split(",")[1].strip())
    if match is None:
        raise PlanError(
            f'{path}: the header is "{header[:60]}"; its second column must name its unit, as bytes_per_second '
            "or mbit_per_second"
        )
    prefix, unit = (group.lower() for group in match.groups())
    return _PREFIXES[prefix] * (8.0 if unit.startswith("by") else 1.0)


def _read_5g_list(lines: Lines, path: Path, run: int) -> Trace:
    runs: dict[str, list[list[float]]] = {}
    current: list[list[float]] | None = None
    for number, line in lines:
        if line.startswith("Run"):
            current = runs.setdefault(line.removeprefix("Run").strip(), [])
        elif not line.startswith("#"):
            row = _numbers(line, ",")
            if row is None or current is None:
                raise PlanError(f'{path}: line {number} is "{line[:60]}"; below a line "Run n" it must hold numbers')
            current.append(row)
    if str(run) not in runs:
        raise PlanError(f"{path}: there is no run {run}; it has {', '.join(runs) or 'none'}")
    megabits = _run_rates(runs[str(run)], f"{path}, run {run}")
    return Trace.of_durations([BIN_SECONDS] * len(megabits), [rate * 1e6 for rate in megabits], f"{path}, run {run}")


def _run_rates(rows: list[list[float]], where: str) -> list[float]:
    """Return the Mbit/s in each bin: the one row as it is, or pairs of rows of times and rates, summed.

    The pairs are two radios of one modem on one clock: where both report, their rates add up.
    """
    if len(rows) == 1:
        return rows[0]
    pairs = list(zip(rows[::2], rows[1::2], strict=False))
    if not rows or len(rows) % 2 or any(len(times) != len(rates) for times, rates in pairs):
        raise PlanError(f"{where}: it must be a line of rates, or pairs of lines of as many times as rates")
    if not all(0 <= time <= MAX_SECONDS for times, _ in pairs for time in times):
        raise PlanError(f"{where}: its times must be from 0 to {MAX_SECONDS} s")
    bins = [np.rint(np.array(times) / BIN_SECONDS).astype(np.int64) for times, _ in pairs]
    summed = np.zeros(max(int(each.max()) for each in bins) + 1)
    for each, (_, rates) in zip(bins, pairs, strict=True):
        np.add.at(summed, each, rates)
    return [float(rate) for rate in summed]
