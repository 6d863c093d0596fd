"""Checkpoints of features that are kept: `python -m benchmarks.kept [--samples N] [--kilobytes K] [--json PATH]`.

With `deployment.changes` both sides keep a feature of each sample. Between two checkpoints a part of them changes, in turn.
Pause is the time of the copy, for which training waits; the files are written while it goes on. With 100 % each checkpoint has
all features. The checkpoints of the other rows end with one that folds them.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from shared.checkpoint import CheckpointName, CheckpointStore, LocalFiles
from shared.model.spec import TensorSpec
from shared.runtime.checkpoint_states import PartFiles
from shared.training.held_state import CopiedPart
from shared.training.kept_features import KeptFeatures

PERCENTS = (1, 10, 100)
_BATCH_SIZE = 100
_LEAST = 5
"""Checkpoints at least: those with all features come in rounds of one."""


@dataclass(frozen=True)
class Taken:
    """A checkpoint that was taken."""

    percent: int
    """Part of the features that had changed, of a hundred."""
    has_all: bool
    """True if it writes all features, and shares no increment with the one before it."""
    pause_seconds: float
    write_seconds: float
    written_bytes: int


def taken(percent: int, samples: int, row_bytes: int, folder: Path) -> Iterator[Taken]:
    """Take checkpoints, of which the last one has all features, as one before the first has."""
    kept, store = KeptFeatures(samples), CheckpointStore(LocalFiles(folder), 2)
    kept.begin("feature", {0: TensorSpec((_BATCH_SIZE, row_bytes // 4), torch.float32)})
    _change(kept, range(samples))
    _checkpoint(kept, store, 0)
    changed, number, ended = samples * percent // 100, 0, False
    while number < _LEAST or not ended:
        _change(kept, [(number * changed + row) % samples for row in range(changed)])
        number += 1
        pause, writing, files = _checkpoint(kept, store, number)
        ended = not files.increments.earlier
        yield Taken(percent, ended, pause, writing, files.bytes)


def _checkpoint(kept: KeptFeatures, store: CheckpointStore, number: int) -> tuple[float, float, PartFiles]:
    began = time.perf_counter()
    copied = kept.copy()
    copied_at = time.perf_counter()
    files = PartFiles(CopiedPart({}, copied), store)
    files.save(store, CheckpointName(0, number), {})
    store.prune()
    return copied_at - began, time.perf_counter() - copied_at, files


def _change(kept: KeptFeatures, samples: Sequence[int]) -> None:
    for batch in torch.tensor(samples).split(_BATCH_SIZE):  # type: ignore[no-untyped-call]
        shape = len(batch), *kept.rows(0, batch)[0].shape[1:]
        kept.keep(0, batch, torch.randn(shape))


def main(arguments: Sequence[str] | None = None) -> None:
    """Take checkpoints, and print the table."""
    parser = benchmark_parser("kept", __doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--kilobytes", type=int, default=32, help="of a feature")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = list[Taken]()
    for percent in PERCENTS:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a disk, which /tmp need not be
            results += taken(percent, chosen.samples, 1024 * chosen.kilobytes, Path(folder))
    Console(width=110).print(_table(results))
    write_json(chosen.json, "kept", results=[asdict(one) for one in results])


def _table(results: Sequence[Taken]) -> Table:
    table = Table(
        "changed, %", "checkpoints", "pause, ms", "longest", "MB", "writing, s", "all, MB", "all, s", "MB each"
    )
    for percent in PERCENTS:
        some = [one for one in results if one.percent == percent]
        increments, whole = [one for one in some if not one.has_all], [one for one in some if one.has_all]
        table.add_row(
            f"{percent}",
            f"{len(some)}",
            _middle([1e3 * one.pause_seconds for one in some], 1),
            f"{max(1e3 * one.pause_seconds for one in some):.1f}",
            _middle([one.written_bytes / 1e6 for one in increments], 2),
            _middle([one.write_seconds for one in increments], 3),
            _middle([one.written_bytes / 1e6 for one in whole], 2),
            _middle([one.write_seconds for one in whole], 2),
            f"{mean(one.written_bytes / 1e6 for one in some):.2f}",
        )
    return table


def _middle(values: Sequence[float], digits: int) -> str:
    return f"{median(values):.{digits}f}" if values else ""


if __name__ == "__main__":
    main()
