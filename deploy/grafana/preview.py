"""Draws our dashboards from a running Prometheus, one PNG each, for a look without Grafana:

`python -m deploy.grafana.preview http://localhost:9090 --minutes 5 --out run/dashboards`
"""

import math
import re
import time
from pathlib import Path
from typing import Annotated, Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import typer
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

from deploy.grafana.generate import FOLDER
from deploy.grafana.questions import Answer, Prometheus, Question, load, other_questions, panel_questions, panels

GRID_COLUMNS = 24
INCHES_A_COLUMN, INCHES_A_ROW = 0.6, 0.42
MARGIN_INCHES = 0.9
PIXELS_AN_INCH = 110
"""The smallest letters are 9 pixels high."""
HEADROOM = 1.15
POINTS = 240
MARK_COLOURS = ("tab:purple", "tab:red")


def _figure_text(unit: str, value: float) -> str:
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "short":
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return EngFormatter(unit={"s": "s", "Bps": "B/s", "bytes": "B"}[unit])(value)


def _name(question: Question, answer: Answer) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: answer.labels.get(match[1], ""), question.name)


def _graph(axes: Axes, panel: dict[str, Any], answers: list[tuple[Question, Answer]], end: float) -> None:
    steps = panel["fieldConfig"]["defaults"]["custom"].get("lineInterpolation") == "stepAfter"
    for question, answer in answers:
        times = [when - end for when, _ in answer.points]
        values = [value for _, value in answer.points]
        axes.plot(times, values, label=_name(question, answer), drawstyle="steps-post" if steps else "default")
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    finite = [value for _, answer in answers for _, value in answer.points if math.isfinite(value)]
    axes.set_ylim(0, HEADROOM * max(finite, default=0.0) or 1.0)
    if unit == "percentunit":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _figure_text(unit, value)))
    axes.legend(fontsize=7, loc="upper left", framealpha=0.6)


def _heatmap(axes: Axes, answers: list[tuple[Question, Answer]], end: float) -> None:
    # Buckets are cumulative: what a bucket holds is what the one below it does not.
    buckets = sorted((float(answer.labels["le"]), dict(answer.points)) for _, answer in answers)
    times = sorted({when for _, points in buckets for when in points})
    counts, below = [], dict.fromkeys(times, 0.0)
    for _, points in buckets:
        row = {when: points.get(when, math.nan) for when in times}
        counts.append([row[when] - below[when] for when in times])
        below = row
    axes.pcolormesh([when - end for when in times], range(len(buckets)), counts, shading="nearest", cmap="magma")
    axes.set_yticks(range(len(buckets)), [f"{bound:g}" for bound, _ in buckets], fontsize=6)


def _stat(axes: Axes, panel: dict[str, Any], answers: list[tuple[Question, Answer]]) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    text = "\n".join(_figure_text(unit, answer.points[-1][1]) for _, answer in answers)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=14, transform=axes.transAxes)
    axes.set_axis_off()


def _beginnings(times: list[float], gap: float) -> list[float]:
    """The first of each run of times that follow each other within `gap`."""
    return [when for before, when in zip([-math.inf, *times], times, strict=False) if when - before > gap]


def draw(board: dict[str, Any], prometheus: Prometheus, seconds: float, scrape_seconds: int, path: Path) -> None:
    """One dashboard over the last `seconds`, as its grid lays it out."""
    end = time.time()
    span = (end - seconds, end, max(seconds / POINTS, scrape_seconds))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height = rows * INCHES_A_ROW
    width = GRID_COLUMNS * INCHES_A_COLUMN
    figure = plt.figure(figsize=(width, height + MARGIN_INCHES), dpi=PIXELS_AN_INCH)
    marks = [
        (when - end, colour)
        for question, colour in zip(other_questions(board, scrape_seconds), MARK_COLOURS, strict=False)
        for answer in prometheus.ask(question, *span)
        for when in _beginnings([when for when, _ in answer.points], 2 * span[2])
    ]

    def place(grid: dict[str, int], header_rows: float) -> tuple[float, float, float, float]:
        left, top = grid["x"] * INCHES_A_COLUMN, (grid["y"] + header_rows) * INCHES_A_ROW
        inner_width, inner_height = grid["w"] * INCHES_A_COLUMN - 0.75, (grid["h"] - header_rows - 0.9) * INCHES_A_ROW
        bottom = height - top - inner_height
        total = height + MARGIN_INCHES
        return (left + 0.6) / width, bottom / total, inner_width / width, inner_height / total

    for row in (panel for panel in board["panels"] if panel["type"] == "row"):
        at = 1 - (MARGIN_INCHES + (row["gridPos"]["y"] + 0.5) * INCHES_A_ROW) / (height + MARGIN_INCHES)
        figure.text(0.01, at, row["title"], fontsize=14, weight="bold")
    for panel in panels(board):
        questions = panel_questions(panel, scrape_seconds)
        answers = [(question, answer) for question in questions for answer in prometheus.ask(question, *span)]
        axes = figure.add_axes(place(panel["gridPos"], 1.0))
        axes.set_title(panel["title"], fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        if panel["type"] == "stat":
            _stat(axes, panel, answers)
            continue
        if panel["type"] == "heatmap":
            _heatmap(axes, answers, end)
        else:
            _graph(axes, panel, answers, end)
            for when, colour in marks:
                axes.axvline(when, color=colour, linewidth=0.8, linestyle=":")
        axes.set_xlim(-seconds, 0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
        axes.grid(alpha=0.3)
    title = f"{board['title']}, the last {seconds:.0f} seconds"
    figure.suptitle(title, x=0.01, y=1 - 0.3 / (height + MARGIN_INCHES), ha="left", fontsize=18)
    figure.savefig(path)
    plt.close(figure)


def main(
    url: Annotated[str, typer.Argument(help="Where Prometheus is.")],
    minutes: Annotated[float, typer.Option(help="How far to look back.")] = 15.0,
    scrape_seconds: Annotated[int, typer.Option(help="How often it scrapes.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("run/dashboards"),
) -> None:
    """Draw every dashboard."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        picture = out / f"{path.stem}.png"
        draw(load(path), Prometheus(url), minutes * 60, scrape_seconds, picture)
        typer.echo(picture)


if __name__ == "__main__":
    typer.run(main)
