"""The outcome of a trial, and where those are kept that the tables are made from."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.plan import Trial
from benchmarks.support.json_lines import read_lines

_RESULTS = Path(__file__).resolve().parents[1] / "results"
RESULTS = {
    "pair": _RESULTS / "learning.jsonl",
    "late": _RESULTS / "learning_late.jsonl",
    "chain": _RESULTS / "learning_chain.jsonl",
    "group": _RESULTS / "learning_group.jsonl",
}
"""Files that the tables of the documentation are made from, by suite."""


@dataclass(frozen=True)
class Result:
    """The outcome of a trial."""

    trial: Trial
    accuracy: float
    """Share of the test set that was right after the last epoch, features compressed as in training."""
    test_samples: int
    train_loss: float | None
    """Mean over the last epoch; None when the training had diverged."""
    seconds: float
    """Wall clock, on a machine that ran others beside it."""
    device: str
    whole_accuracy: float | None = None
    """As `accuracy`, of the model in one piece, features as they are; None where that is the same, or was not measured."""


def read_results(path: Path) -> list[Result]:
    """All results of a file, in its order; none where there is no file. Raises DataError for a line that is no result."""
    return read_lines(
        path, lambda fields: Result(**{**fields, "trial": Trial(**fields["trial"])}), "benchmarks.learning"
    )
