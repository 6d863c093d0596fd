"""A race of training runs as a picture: where the engine's run was cut, and the steps and the loss of all runs over time.

Needs matplotlib, and only when it draws.
"""

from pathlib import Path
from typing import Any

from deploy.demo.race import Race, Racer
from edge_agent.observability.plots import NO_MATPLOTLIB
from shared.errors import PlanError

_SMOOTH_SECONDS = 3.0
"""Over which losses are averaged for the eye."""
_SHOWN = 2.5
"""So many times the seconds of the race are shown."""

_LINE, _LINES = 0.11, 5
"""Height of a line of the notes, as a part of the axes, and the number of lines before the first is used again."""


def draw_race(race: Race, *paths: Path) -> None:
    """Draw a race, once for each path, whose name says the kind of picture.

    Raises PlanError where matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise PlanError(f"the picture {NO_MATPLOTLIB}") from error
    figure = Figure(figsize=(9, 9), layout="constrained")
    cuts, steps, losses = rows = figure.subplots(3, 1, sharex=True, height_ratios=(1.6, 2, 1.6))
    _draw_cuts(cuts, race.engine)
    cuts.yaxis.set_major_locator(MaxNLocator(integer=True))
    for index, racer in enumerate(race.kept):
        _draw_run(steps, losses, race, racer, {"color": f"C{index}", "linewidth": 1.4})
    _draw_run(steps, losses, race, race.engine, {"color": "black", "linewidth": 2.4})
    steps.set_ylabel("steps")
    steps.set_ylim(0, race.steps * 1.02)
    steps.legend(loc="lower right", frameon=False, fontsize=9, reverse=True)
    losses.set_ylabel("training loss")
    losses.set_ylim(bottom=0)
    losses.set_xlabel("seconds (dotted: at the pace since the last change)")
    losses.set_xlim(0, _SHOWN * race.seconds_of(race.engine))
    for axes in rows:
        axes.spines[["top", "right"]].set_visible(False)
        for phase in race.phases[1:]:
            axes.axvline(phase.begin_seconds, color="tab:red", linewidth=1.0)
    for index, phase in enumerate(race.phases):
        place = (phase.begin_seconds, 1.04 + 0.12 * (index % 2))  # those that are short have no room side by side
        cuts.annotate(f" {phase.words}", place, xycoords=("data", "axes fraction"), color="tab:red", fontsize=9)
    figure.suptitle(race.verdict, fontsize=11)
    figure.align_ylabels()
    try:
        for path in paths:
            figure.savefig(path, dpi=120)
    except OSError as error:
        raise PlanError(f"{path}: the picture cannot be written: {error.strerror}") from error


def _draw_cuts(axes: Any, engine: Racer) -> None:
    """Draw the number of blocks that the engine has on the device."""
    moves = engine.moves
    edges = [0.0, *(move.seconds for move in moves[1:]), engine.moments[-1].seconds]
    axes.stairs([move.cut for move in moves], edges, fill=True, color="black", alpha=0.3)
    axes.set_ylabel(f"blocks on the device,\nwith {engine.name}")
    axes.set_ylim(0, 4)
    for place, note in enumerate(engine.notes):
        height = 0.93 - _LINE * (place % _LINES)
        axes.axvline(note.seconds, ymax=height, color="black", linewidth=0.8)
        axes.annotate(
            note.words,
            (note.seconds, height),
            xytext=(4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )


def _draw_run(steps: Any, losses: Any, race: Race, racer: Racer, look: dict[str, Any]) -> None:
    times = [moment.seconds for moment in racer.moments]
    label = f"{racer.name}: {race.seconds_of(racer):.0f} s"
    steps.plot(times, [moment.steps for moment in racer.moments], label=label, **look)
    last = racer.moments[-1]
    if last.steps < race.steps:
        steps.plot([last.seconds, race.seconds_of(racer)], [last.steps, race.steps], linestyle=":", **look)
    losses.plot(times, _smoothed(racer), **look)


def _smoothed(racer: Racer) -> list[float]:
    """Return the mean loss in the time before each moment."""
    means, first = [], 0
    for last, moment in enumerate(racer.moments):
        while racer.moments[first].seconds < moment.seconds - _SMOOTH_SECONDS:
            first += 1
        near = racer.moments[first : last + 1]
        means.append(sum(each.loss for each in near) / len(near))
    return means
