"""Results as lines of JSON: one training a line, appended when it ends, so that a broken run has lost only what was running."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.learning.plan import Trial
from shared.errors import DataError

_RESULTS = Path(__file__).resolve().parents[1] / "results"
RESULTS = {
    "pair": _RESULTS / "learning.jsonl",
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
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            fields = json.loads(line)
            results.append(Result(**{**fields, "trial": Trial(**fields["trial"])}))
        except (ValueError, KeyError, TypeError) as cause:
            raise DataError(f"{path}, line {number} is no result of benchmarks.learning: {cause}") from cause
    return results


def append_result(path: Path, result: Result) -> None:
    """Add one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
