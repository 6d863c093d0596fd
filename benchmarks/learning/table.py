"""The tables of `benchmarks.learning` as Markdown, from its stored results.

    python -m benchmarks.learning.table [--suite chain] [--seeds 0-1] [--results FILE] [--into benchmarks/results/learning.md]

Without --into they are printed; with it they replace what stands between the two marks of the suite in that file.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.learning.plan import (
    BATCH_SIZE,
    LEARNING_RATES_TRIED,
    MOMENTUM,
    NETWORKS,
    OPTIMIZERS,
    SUITES,
    WEIGHT_DECAY,
    Network,
    Suite,
    Trial,
)
from benchmarks.learning.results import RESULTS, Result, read_results
from benchmarks.support.arguments import numbers
from benchmarks.support.report import mean_and, replaced
from shared.codec import FeedbackMode
from shared.errors import DataError
from shared.execution.split import Scheme
from shared.registry import codec_spec


def marks(suite: str) -> tuple[str, str]:
    """The lines of a document between which the tables of a suite stand."""
    return f"<!-- learning, {suite}: made by benchmarks.learning.table -->", f"<!-- end of learning, {suite} -->"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, draw, and print or write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.table", description="Accuracy as Markdown.")
    parser.add_argument("--suite", choices=SUITES, default="pair", help="whose results (default: %(default)s)")
    parser.add_argument("--seeds", type=numbers, help="only these, one number or the first and last (default: all)")
    parser.add_argument("--results", type=Path, help="what benchmarks.learning stored (default: the suite's)")
    parser.add_argument("--into", type=Path, help="file with the two marks; without it the tables are printed")
    chosen = parser.parse_args(arguments)
    results = read_results(chosen.results or RESULTS[chosen.suite])
    text = tables([result for result in results if chosen.seeds is None or result.trial.seed in chosen.seeds])
    if chosen.into is None:
        print(text)
    else:
        chosen.into.write_text(replaced(chosen.into.read_text(), text, str(chosen.into), *marks(chosen.suite)))


def tables(results: Sequence[Result]) -> str:
    """A table for each network and optimizer. Raises DataError for results that cannot stand in one table."""
    rates = {result.trial.optimizer: result.trial.learning_rate for result in results}
    settings = {
        (trial.suite, trial.epochs, trial.train_samples, trial.learning_rate - rates[trial.optimizer])
        for trial in (result.trial for result in results)
    }
    if len(settings) != 1:
        raise DataError(
            f"the results are of {len(settings)} settings of suite, epochs, training samples and learning rate; a table "
            "holds those of one"
        )
    if len({result.trial for result in results}) != len(results):
        raise DataError("a training is among the results more than once")
    ((name_of_suite, epochs, train_samples, _),) = settings
    suite = SUITES[name_of_suite]
    devices = ", ".join(sorted({result.device for result in results}))
    parts = [
        f"CIFAR-10, {train_samples:,} training and {results[0].test_samples:,} test images without augmentation, {epochs} "
        f"epochs of batches of {BATCH_SIZE}; SGD with momentum {MOMENTUM} and weight decay {WEIGHT_DECAY}, or the optimizer "
        f"that a table names; a learning rate that rises to {_listed(rates)} in the first epoch and "
        f"{_course(suite, results[0].trial)}; simulated "
        f"on {devices}. Accuracy on the test set after the last epoch: mean ± standard deviation over the seeds. The "
        "difference is taken seed by seed, since a seed has the same first weights and batches in every row: mean ± "
        "standard error. All rows of a table have the same seeds. Features are compressed in the test as in training; *in one "
        "piece* is what the same model gains where they are not, as when it is deployed whole."
        + _edge_of_the_grid(rates.get("sgd"))
    ]
    for (name, network), optimizer in product(NETWORKS.items(), OPTIMIZERS):
        if chosen := [
            result for result in results if (result.trial.network, result.trial.optimizer) == (name, optimizer)
        ]:
            of = "" if optimizer == "sgd" else f", {optimizer}"
            title = f"**{name}{of}**: `{network.factory}` with {network.kwargs}, {_divided(network, name_of_suite)}."
            parts += [title, "\n".join(_table(suite, chosen)), *_left_out(suite, chosen), *_verdicts(suite, chosen)]
    return "\n\n".join(parts)


def _listed(rates: Mapping[str, float]) -> str:
    """List the rates, each with its optimizer where that is not SGD."""
    names = [name for name in OPTIMIZERS if name in rates]
    return ", ".join(f"{rates[name]}{'' if name == 'sgd' else f' ({name})'}" for name in names)


def _divided(network: Network, suite: str) -> str:
    if members := SUITES[suite].members:
        return f"each batch shared by the {members} members of a group; gradients go up, weights down"
    return f"cut after {' and '.join(map(str, network.cuts[suite]))} blocks"


def _course(suite: Suite, trial: Trial) -> str:
    if suite.schedule == "cosine":
        return "falls to 0 along a cosine"
    return f"falls to a tenth after {' and '.join(map(str, trial.milestones))} epochs"


def _edge_of_the_grid(learning_rate: float | None) -> str:
    tried = LEARNING_RATES_TRIED
    if learning_rate not in (min(tried), max(tried)):
        return ""
    return (
        f" The learning rate is at the edge of those that were tried ({', '.join(map(str, tried))}), for serial training "
        "alone: it need not be the best one for any row."
    )


def _left_out(suite: Suite, results: Sequence[Result]) -> Iterator[str]:
    """The configurations whose baseline lacks seeds."""
    begun = [name for name in suite.configs if _accuracies(results, name) and not _complete(suite, results, name)]
    if begun:
        yield f"Not shown, because seeds are missing: {', '.join(begun)}."


def _complete(suite: Suite, results: Sequence[Result], config: str) -> bool:
    return _accuracies(results, config).keys() == _accuracies(results, next(iter(suite.configs))).keys()


def _table(suite: Suite, results: Sequence[Result]) -> Iterator[str]:
    baseline = next(iter(suite.configs))
    columns = (
        "configuration",
        "K",
        "late gradients",
        "codec up",
        "feedback",
        "codec down",
        "accuracy, %",
        "difference, points",
        "in one piece, points",
        "seeds",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, schemes in suite.configs.items():
        accuracies = _accuracies(results, name)
        if not accuracies or not _complete(suite, results, name):
            continue
        scheme = schemes[0]
        cells = (
            name,
            str(scheme.staleness),
            _late(suite, name, scheme),
            _in_turn(scheme.codec for scheme in schemes),
            _feedback(suite, scheme) if codec_spec(scheme.codec).lossy else "",
            _in_turn(scheme.downlink_codec for scheme in schemes),
            mean_and(list(accuracies.values()), ".2f", of_mean=False),
            mean_and(_differences(results, name, baseline), "+.2f", of_mean=True) if name != baseline else "",
            mean_and(_in_one_piece(results, name), "+.2f", of_mean=True),
            str(len(accuracies)),
        )
        yield f"| {' | '.join(cells)} |"


def _late(suite: Suite, name: str, scheme: Scheme) -> str:
    if not scheme.staleness:
        return ""
    return f"{scheme.backward}, features of predicted weights" if name in suite.predicted else scheme.backward


def _feedback(suite: Suite, scheme: Scheme) -> str:
    is_residual = suite.members and scheme.feedback is not FeedbackMode.OFF
    return "residual" if is_residual else scheme.feedback.value


def _in_turn(codecs: Iterable[str]) -> str:
    """The codecs of a configuration, from one milestone to the next; what stays is said once."""
    return ", then ".join(dict.fromkeys(codecs))


def _verdicts(suite: Suite, results: Sequence[Result]) -> Iterator[str]:
    for config, goal, against in suite.goals:
        is_there = _complete(suite, results, config) and _complete(suite, results, against)
        if is_there and (differences := _differences(results, config, against)):
            points = statistics.mean(differences)
            kept = "kept" if points >= goal else "missed"
            unit = "point" if abs(goal) == 1 else "points"
            distance = f"at most {-goal:g} {unit} below" if goal < 0 else f"at least {goal:g} {unit} above"
            yield f"Goal: {config} {distance} {against}: {kept}, {points:+.2f}."


def _accuracies(results: Sequence[Result], config: str) -> dict[int, float]:
    """Percent by seed, in the order of seeds."""
    found = {result.trial.seed: 100 * result.accuracy for result in results if result.trial.config == config}
    return dict(sorted(found.items()))


def _differences(results: Sequence[Result], config: str, against: str) -> list[float]:
    """Points above another configuration, of every seed that both have."""
    other = _accuracies(results, against)
    return [value - other[seed] for seed, value in _accuracies(results, config).items() if seed in other]


def _in_one_piece(results: Sequence[Result], config: str) -> list[float]:
    """Points above its own accuracy, of every seed where it was measured."""
    return [
        100 * (result.whole_accuracy - result.accuracy)
        for result in results
        if result.trial.config == config and result.whole_accuracy is not None
    ]


if __name__ == "__main__":
    main()
