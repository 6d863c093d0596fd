"""The tables of `benchmarks.learning` as Markdown, from its stored results.

    python -m benchmarks.learning.table [--results FILE] [--into benchmarks/results/learning.md]

Without --into they are printed; with it they replace what stands between two marks in that file.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.learning.plan import BATCH_SIZE, CONFIGS, LEARNING_RATES_TRIED, MOMENTUM, NETWORKS, WEIGHT_DECAY
from benchmarks.learning.results import RESULTS, Result, read_results
from benchmarks.support.report import replaced
from shared.errors import DataError
from shared.registry import is_lossy

BEGIN, END = "<!-- learning: made by benchmarks.learning.table -->", "<!-- end of learning -->"
BASELINE = next(iter(CONFIGS))
GOAL_CONFIG, GOAL_POINTS = "k5-8bit", 1.0
"""Paper 000, Table 4: with 8 bits and feedback, K = 5 costs less than a point."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, draw, and print or write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.table", description="Accuracy as Markdown.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="what benchmarks.learning stored")
    parser.add_argument("--into", type=Path, help="file with the two marks; without it the tables are printed")
    chosen = parser.parse_args(arguments)
    text = tables(read_results(chosen.results))
    if chosen.into is None:
        print(text)
    else:
        chosen.into.write_text(replaced(chosen.into.read_text(), text, str(chosen.into), BEGIN, END))


def tables(results: Sequence[Result]) -> str:
    """A table for each network. Raises DataError for results that cannot stand in one table."""
    settings = {(result.trial.epochs, result.trial.train_samples, result.trial.learning_rate) for result in results}
    if len(settings) != 1:
        raise DataError(
            f"the results are of {len(settings)} settings of epochs, training samples and learning rate; a table holds "
            "those of one"
        )
    if len({result.trial for result in results}) != len(results):
        raise DataError("a training is among the results more than once")
    ((epochs, train_samples, learning_rate),) = settings
    devices = ", ".join(sorted({result.device for result in results}))
    parts = [
        f"CIFAR-10, {train_samples:,} training and {results[0].test_samples:,} test images without augmentation, {epochs} "
        f"epochs of batches of {BATCH_SIZE}; SGD with momentum {MOMENTUM}, weight decay {WEIGHT_DECAY} and a learning "
        f"rate that rises to {learning_rate} in the first epoch and falls to 0 along a cosine; simulated "
        f"on {devices}. Accuracy on the test set after the last epoch: mean ± standard deviation over the seeds. The "
        "difference is taken seed by seed, since a seed has the same first weights and batches in every row: mean ± "
        "standard error. All rows of a table have the same seeds." + _edge_of_the_grid(learning_rate)
    ]
    for name, network in NETWORKS.items():
        if chosen := [result for result in results if result.trial.network == name]:
            title = f"**{name}**: `{network.factory}` with {network.kwargs}, cut after {network.cut} blocks."
            parts += [title, "\n".join(_table(chosen)), *_left_out(chosen), *_verdict(chosen)]
    return "\n\n".join(parts)


def _edge_of_the_grid(learning_rate: float) -> str:
    tried = LEARNING_RATES_TRIED
    if learning_rate not in (min(tried), max(tried)):
        return ""
    return (
        f" The learning rate is at the edge of those that were tried ({', '.join(map(str, tried))}), for serial training "
        "alone: it need not be the best one for any row."
    )


def _left_out(results: Sequence[Result]) -> Iterator[str]:
    """The configurations whose baseline lacks seeds."""
    begun = [name for name in CONFIGS if _accuracies(results, name) and not _complete(results, name)]
    if begun:
        yield f"Not shown, because seeds are missing: {', '.join(begun)}."


def _complete(results: Sequence[Result], config: str) -> bool:
    return _accuracies(results, config).keys() == _accuracies(results, BASELINE).keys()


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "| configuration | K | late gradients | codec up | feedback | codec down | accuracy, % | difference, points | seeds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, scheme in CONFIGS.items():
        accuracies = _accuracies(results, name)
        if not accuracies or not _complete(results, name):
            continue
        cells = (
            name,
            str(scheme.staleness),
            scheme.backward if scheme.staleness else "",
            scheme.codec,
            scheme.feedback.value if is_lossy(scheme.codec) else "",
            scheme.downlink_codec,
            _mean_and(list(accuracies.values()), "", of_mean=False),
            _mean_and(_differences(results, name), "+", of_mean=True) if name != BASELINE else "",
            str(len(accuracies)),
        )
        yield f"| {' | '.join(cells)} |"


def _verdict(results: Sequence[Result]) -> Iterator[str]:
    if _complete(results, GOAL_CONFIG) and (differences := _differences(results, GOAL_CONFIG)):
        points = statistics.mean(differences)
        kept = "kept" if points >= -GOAL_POINTS else "missed"
        yield f"Goal: {GOAL_CONFIG} at most {GOAL_POINTS:g} point below {BASELINE}: {kept}, {points:+.2f}."


def _accuracies(results: Sequence[Result], config: str) -> dict[int, float]:
    """Percent by seed, in the order of seeds."""
    found = {result.trial.seed: 100 * result.accuracy for result in results if result.trial.config == config}
    return dict(sorted(found.items()))


def _differences(results: Sequence[Result], config: str) -> list[float]:
    """Points above the baseline, of every seed that both have."""
    baseline = _accuracies(results, BASELINE)
    return [value - baseline[seed] for seed, value in _accuracies(results, config).items() if seed in baseline]


def _mean_and(values: Sequence[float], sign: str, *, of_mean: bool) -> str:
    """The mean, and behind it the standard error of that mean or the values' standard deviation, given two values."""
    if not values:
        return ""
    spread = ""
    if len(values) > 1:
        deviation = statistics.stdev(values)
        spread = f" ± {deviation / len(values) ** 0.5 if of_mean else deviation:.2f}"
    return f"{statistics.mean(values):{sign}.2f}{spread}"


if __name__ == "__main__":
    main()
