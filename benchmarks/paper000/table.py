"""The figures as Markdown, from stored results."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.paper000.figures import BITS, FIGURES, Figure, Row
from benchmarks.paper000.tasks import TASKS
from benchmarks.paper000.training import DEVIATIONS, LATENESS, LEAST_STEPS, QUANTILES, Result, Training
from benchmarks.support.report import mean_and
from shared.errors import DataError

Results = Mapping[Training, Result]
Changes = tuple[tuple[float, ...], ...]
_TOLERATED_POINTS = 1.0
"""Loss of accuracy within which bits are enough."""
_PHASES = ("first", "middle", "last")


def figure_text(name: str, alone: Mapping[str, Training], results: Results, seeds: Sequence[int]) -> str:
    """Return a figure with a table for each task, of the seeds of which every row has a result.

    alone: by task, its training on the device alone with the first seed. Raises DataError where no table is left.
    """
    figure, tables = FIGURES[name], []
    for first in (alone[task] for task in figure.tasks if task in alone):
        rows = figure.rows(first)
        whole = [seed for seed in seeds if all(replace(row.training, seed=seed) in results for row in rows)]
        if not whole:
            continue
        made = {row.label: [results[replace(row.training, seed=seed)] for seed in whole] for row in rows}
        drawn = _DRAWN.get(name, _compared)(figure, rows, made, results)
        tables += [_title(first), "\n".join(drawn), *(_fewest(rows, made, results) if name == "fig8" else ())]
    if not tables:
        raise DataError(
            f"{name} has no table: its tasks are {', '.join(figure.tasks)}, and no seed of those that are asked for has a "
            "stored result for every row"
        )
    size = next(iter(alone.values())).size
    return "\n\n".join([f"**{name}: {figure.title}.** Paper: {figure.paper}.", _conditions(size), *tables])


def _conditions(size: str) -> str:
    return (
        f"Size `{size}`; at most half as many samples are tested as trained with; batches of 32 unless a row says otherwise. "
        "Mean ± standard deviation over the seeds; beside the device alone, seed by seed: mean ± standard error. Features "
        "are compressed in the test as in training."
    )


def _title(shown: Training) -> str:
    about, chosen = TASKS[shown.task], TASKS[shown.task].sizes[shown.size]
    stands_for = f"; {about.stands_for}" if about.stands_for else ""
    trained = f"{chosen.optimizer.name}, {shown.epochs} epochs of at most {shown.samples} samples"
    return f"*{about.title}*: `{chosen.factory.partition(':')[2]}`, {trained}{stands_for}."


def _compared(
    figure: Figure, rows: Sequence[Row], made: Mapping[str, Sequence[Result]], results: Results
) -> Iterator[str]:
    by_loss = not _has_classes(made[rows[0].label])
    unit = "loss" if by_loss else "accuracy, %"
    columns = ["", f"paper, {unit}", unit, "times the loss" if by_loss else "difference, points"]
    columns += ["by epoch"] * figure.has_curves + ["seeds"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        of_row = made[row.label]
        last = [result.curve[-1].loss if by_loss else _percent(result) for result in of_row]
        against = [results[result.training.alone] for result in of_row]
        is_alone = row.training == row.training.alone
        if by_loss:
            distances = [one / base.curve[-1].loss for one, base in zip(last, against, strict=True)]
        else:
            distances = [one - _percent(base) for one, base in zip(last, against, strict=True)]
        digits = ".3g" if by_loss else ".2f"
        areas = [result.auc for result in of_row if result.auc is not None]
        cells = [
            row.label,
            "" if row.paper is None else f"{row.paper:g}",
            mean_and(last, digits, of_mean=False) + (f" (AUC {statistics.mean(areas):.3f})" if areas else ""),
            "" if is_alone else mean_and(distances, ".3f" if by_loss else "+.2f", of_mean=True),
            *[_course(of_row)] * figure.has_curves,
            str(len(of_row)),
        ]
        yield f"| {' | '.join(cells)} |"


def _course(results: Sequence[Result]) -> str:
    epochs = zip(*(result.curve for result in results), strict=True)
    return ", ".join(f"{100 * statistics.mean(tested.accuracy or 0.0 for tested in epoch):.1f}" for epoch in epochs)


def _fewest(rows: Sequence[Row], made: Mapping[str, Sequence[Result]], results: Results) -> Iterator[str]:
    """Say for each cut how few bits lose no more than a point."""
    found: dict[int, str] = {}
    for row in rows[1:]:
        lost = [_percent(results[one.training.alone]) - _percent(one) for one in made[row.label]]
        assert row.training.cut is not None
        found.setdefault(row.training.cut, f"more than {max(BITS)}")
        if statistics.mean(lost) <= _TOLERATED_POINTS:
            found[row.training.cut] = row.training.codec.removeprefix("uniform")
    said = ", ".join(f"cut {cut}: {bits}" for cut, bits in found.items())
    yield f"Fewest bits that lose at most {_TOLERATED_POINTS:g} point: {said}."


def _rates(_: Figure, rows: Sequence[Row], made: Mapping[str, Sequence[Result]], __: Results) -> Iterator[str]:
    columns = ["K", *(f"{quantile:.0%} of all steps below, %" for quantile in QUANTILES), "seeds"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    found = [_measured(result.rates) for result in made[rows[0].label]]
    for place, late in enumerate(LATENESS):
        means = [statistics.mean(rates[place][each] for rates in found) for each in range(len(QUANTILES))]
        yield f"| {late} | {' | '.join(f'{mean:.4f}' for mean in means)} | {len(found)} |"


def _deviations(_: Figure, rows: Sequence[Row], made: Mapping[str, Sequence[Result]], __: Results) -> Iterator[str]:
    columns = ["end of epoch", *(f"K = {late}" for late in DEVIATIONS), "seeds"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    found = [_measured(result.deviations) for result in made[rows[0].label]]
    for place, phase in enumerate(_PHASES):
        means = [statistics.mean(deviations[place][each] for deviations in found) for each in range(len(DEVIATIONS))]
        yield f"| {phase} | {' | '.join(f'{mean:.2e}' for mean in means)} | {len(found)} |"


def _measured(changes: Changes | None) -> Changes:
    if changes is None:
        raise DataError(f"a training is too short for its weights' change; it must have {LEAST_STEPS} steps or more")
    return changes


_DRAWN: Mapping[str, Callable[..., Iterator[str]]] = {"fig3": _rates, "fig4": _deviations}
"""The figures that show something else than a comparison."""


def _has_classes(results: Sequence[Result]) -> bool:
    return results[0].curve[-1].accuracy is not None


def _percent(result: Result) -> float:
    return 100 * (result.curve[-1].accuracy or 0.0)
