"""`python -m benchmarks.learning`: runs the trainings that are still missing from a file of results, several at a time."""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning.plan import NETWORKS, OPTIMIZERS, SUITES, Trial
from benchmarks.learning.results import RESULTS, read_results
from benchmarks.learning.workers import run_trials
from benchmarks.support.arguments import numbers
from benchmarks.support.json_lines import append_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run and store."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    configs = SUITES[chosen.suite].configs
    if unknown := [config for config in chosen.configs or () if config not in configs]:
        parser.error(
            f"{unknown[0]!r} is no configuration of the suite {chosen.suite!r}, which has {', '.join(configs)}"
        )
    chosen.configs, chosen.out = chosen.configs or list(configs), chosen.out or RESULTS[chosen.suite]
    chosen.learning_rate = chosen.learning_rate or OPTIMIZERS[chosen.optimizer].learning_rate
    done = {result.trial for result in read_results(chosen.out)}
    trials = [trial for trial in _trials(chosen) if trial not in done]
    print(f"{len(trials)} trainings to run on {chosen.device}, {chosen.workers} at a time", flush=True)
    started = time.monotonic()
    results = run_trials(trials, chosen.data, chosen.train_samples, chosen.device, chosen.workers, chosen.stop_seconds)
    for number, result in enumerate(results, start=1):
        append_line(chosen.out, result)
        trial, elapsed = result.trial, time.monotonic() - started
        print(
            f"{number}/{len(trials)} {trial.network} {trial.config} seed {trial.seed}: {result.accuracy:.2%} "
            f"after {result.seconds:.0f} s; {elapsed:.0f} s so far, all by {elapsed * len(trials) / number:.0f} s",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="CIFAR-10 as an .npz of JPEGs")
    add(
        "--out",
        type=Path,
        help="file of results; those in it are not run again (default: the suite's under benchmarks/results)",
    )
    add("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    add(
        "--suite",
        choices=SUITES,
        default="pair",
        help="a pair of workers, one whose staleness is corrected, a chain of three, or a group (default: %(default)s)",
    )
    add("--configs", nargs="+", metavar="NAME", help="of the suite (default: all)")
    add("--seeds", type=numbers, default=range(5), help="one number, or the first and last of several (default: 0-4)")
    add("--epochs", type=int, default=8, help="of every training (default: %(default)s)")
    add("--train-samples", type=int, default=50_000, help="the first of the training set (default: all)")
    add("--optimizer", choices=OPTIMIZERS, default="sgd", help="of every training (default: %(default)s)")
    add("--learning-rate", type=float, help="at its highest (default: the optimizer's in the plan)")
    add("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    add(
        "--workers", type=int, default=1, help="trainings at a time, a process and a thread each (default: %(default)s)"
    )
    add("--stop-seconds", type=float, default=float("inf"), help="start no training later than this (default: never)")
    return parser


def _trials(chosen: argparse.Namespace) -> list[Trial]:
    """Seed by seed, so that a run that is stopped early has compared all configurations on fewer seeds."""
    return [
        Trial(
            network,
            config,
            seed,
            chosen.epochs,
            chosen.train_samples,
            chosen.learning_rate,
            chosen.suite,
            chosen.optimizer,
        )
        for seed, network, config in itertools.product(chosen.seeds, chosen.networks, chosen.configs)
    ]


if __name__ == "__main__":
    main()
