"""A run of a demo as a picture: what moved, how quick the steps were, and how the loss fell, over the same seconds.

Needs matplotlib, and only when it draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.observability.plots import NO_MATPLOTLIB
from shared.errors import PlanError

_SMOOTH_SECONDS = 2.0
"""Over which rates and losses are averaged for the eye."""


class Moment(NamedTuple):
    """A run at one moment."""

    seconds: float
    steps: int
    loss: float
    cuts: tuple[int, ...]
    """The blocks before each worker but the first."""


@dataclass
class Run:
    """The course of a run, from its first step on."""

    workers: Sequence[str]
    blocks: int
    moments: list[Moment] = field(default_factory=list)

    @property
    def moves(self) -> list[Moment]:
        """The beginning, and the first moment after each move."""
        pairs = zip([None, *self.moments], self.moments, strict=False)
        return [moment for before, moment in pairs if before is None or before.cuts != moment.cuts]

    def steps_per_second(self, begin: float, end: float) -> float | None:
        """Between two moments, in seconds; None where too little was done to say."""
        inside = [moment for moment in self.moments if begin <= moment.seconds <= end]
        if len(inside) < 2 or inside[-1].seconds - inside[0].seconds < _SMOOTH_SECONDS:
            return None
        return (inside[-1].steps - inside[0].steps) / (inside[-1].seconds - inside[0].seconds)

    def smooth(self) -> tuple[list[float], list[float]]:
        """Return the steps a second and the mean loss in the time before each moment."""
        rates, losses, first = [], [], 0
        for last, moment in enumerate(self.moments):
            while first < last and self.moments[first].seconds < moment.seconds - _SMOOTH_SECONDS:
                first += 1
            near = self.moments[first : last + 1]
            seconds = moment.seconds - near[0].seconds
            rates.append((moment.steps - near[0].steps) / seconds if seconds > 0 else float("nan"))
            losses.append(sum(each.loss for each in near) / len(near))
        return rates, losses


def draw_run(run: Run, event: tuple[float, str] | None, title: str, *paths: Path) -> None:
    """Draw a run, once for each path, whose name says the kind of picture. event: at which second what happened to it.

    Raises PlanError where matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise PlanError(f"the picture {NO_MATPLOTLIB}") from error
    figure = Figure(figsize=(9, 7), layout="constrained")
    blocks, speed, loss = rows = figure.subplots(3, 1, sharex=True, height_ratios=(1.6, 1, 1))
    end = run.moments[-1].seconds
    _draw_blocks(blocks, run, end)
    blocks.set_title(title, fontsize=11)
    blocks.yaxis.set_major_locator(MaxNLocator(integer=True))
    rates, losses = run.smooth()
    times = [moment.seconds for moment in run.moments]
    speed.plot(times, rates, color="black", linewidth=1.5)
    speed.set_ylabel("steps a second")
    known = [rate for rate in rates if not math.isnan(rate)]
    speed.set_ylim(0, 1.1 * max(known, default=1.0))
    loss.plot(times, losses, color="black", linewidth=1.5)
    loss.set_ylabel("training loss")
    loss.set_ylim(bottom=0)
    loss.set_xlabel("seconds")
    loss.set_xlim(0, end)
    for axes in rows:
        axes.spines[["top", "right"]].set_visible(False)
        for move in run.moves[1:]:
            axes.axvline(move.seconds, color="0.5", linewidth=0.8, linestyle=":")
        if event is not None:
            axes.axvline(event[0], color="tab:red", linewidth=1.4)
    if event is not None:
        speed.annotate(
            f" {event[1]}", (event[0], 1.02), xycoords=("data", "axes fraction"), va="bottom", color="tab:red"
        )
    figure.align_ylabels()
    try:
        for path in paths:
            figure.savefig(path, dpi=120)
    except OSError as error:
        raise PlanError(f"{path}: the picture cannot be written: {error.strerror}") from error


def _draw_blocks(axes: Any, run: Run, end: float) -> None:
    """A colour a worker: how many blocks it has, those of the nearest below."""
    times = [move.seconds for move in run.moves] + [end]
    bounds = [(0, *move.cuts, run.blocks) for move in run.moves]
    for index, worker in enumerate(run.workers):
        lower, upper = ([bound[index + of] for bound in bounds] for of in (0, 1))
        axes.stairs(upper, times, baseline=lower, fill=True, label=worker, color=f"C{index}", alpha=0.75)
    axes.set_ylabel("blocks of the model")
    axes.set_ylim(0, run.blocks)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
