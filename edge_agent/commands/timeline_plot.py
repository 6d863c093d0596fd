"""A picture of a time line: a lane for each worker and each way of a link, a colour for each step, and a legend.

Needs matplotlib, and only when it draws.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.observability.lanes import TimelineLane
from edge_agent.observability.plots import NO_MATPLOTLIB, write_picture
from edge_agent.observability.timeline import PARTS_TOGETHER, Span
from edge_agent.observability.timeline_window import TimelineWindow
from shared.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948")
"""One more than the batches that are usually in flight, so that steps under way at once differ."""
_FRAME_INCHES, _LANE_INCHES = 1.9, 0.5
_BAR_HEIGHT = 0.72
_PALE = 0.45
_DIGIT_SHARE = 0.0075
"""The share of the width that a bar needs for each digit of its step's number."""
_OUTLINED_SHARE = 0.006
"""The share of the width from which a span has room for an outline."""
_SEEN_SHARE = 0.0015
"""Shorter ones are drawn with this length; otherwise they would be invisible."""


def draw(window: TimelineWindow, path: Path) -> None:
    """Draw a window to a picture; the ending of `path` says which kind, png, svg or pdf.

    Raises ConfigError where matplotlib is not installed or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ConfigError(f"drawing a time line {NO_MATPLOTLIB}") from None
    lanes = window.titles
    figure = Figure(figsize=(14, _FRAME_INCHES + _LANE_INCHES * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    rows = {lane: row for row, lane in enumerate(lanes)}
    for span in window.spans:
        _draw_span(axes, span, rows[span.lane], window)
    for lane, row in rows.items():
        axes.text(1.008, row, window.figure(lane), transform=axes.get_yaxis_transform(), va="center")
    axes.set_yticks(range(len(lanes)), list(lanes.values()))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, window.seconds * 1e3)
    axes.set_xlabel("milliseconds")
    axes.set_title(window.pace, loc="left", weight="bold")
    axes.set_title("busy", loc="right", x=1.03, size="medium")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    explained = [
        Patch(facecolor="#888888", edgecolor="white", label="a bar: one step, whose number and colour it has"),
        Patch(facecolor="#888888", edgecolor="white", hatch="////", label="hatched: backward and update on the edge"),
    ]
    if any(_is_pale(span.lane, span.what) for span in window.spans):
        meaning = "pale: as long as the trainer reports; when exactly is not known"
        explained.append(Patch(facecolor="#888888", edgecolor="white", alpha=_PALE, label=meaning))
    figure.legend(handles=explained, loc="outside lower left", ncols=len(explained), frameon=False, handleheight=1.2)
    write_picture(figure, path)


def _draw_span(axes: "Axes", span: Span, row: int, window: TimelineWindow) -> None:
    colour = _COLOURS[span.step % len(_COLOURS)]
    left, width = (span.start - window.start) * 1e3, (span.end - span.start) * 1e3
    share = width / (window.seconds * 1e3)
    is_pale, is_hatched = _is_pale(span.lane, span.what), span.lane.phase == "edge" and "forward" not in span.what
    axes.barh(
        row,
        max(width, _SEEN_SHARE * window.seconds * 1e3),
        _BAR_HEIGHT,
        left,
        color=colour,
        edgecolor="white",
        linewidth=0.6 if share > _OUTLINED_SHARE else 0.0,
        hatch="////" if is_hatched else None,
        alpha=_PALE if is_pale else None,
        snap=False,
    )
    if share > _DIGIT_SHARE * len(str(span.step)):
        ground = {"facecolor": colour, "edgecolor": "none", "pad": 1} if is_hatched else None
        axes.text(
            left + width / 2,
            row,
            str(span.step),
            ha="center",
            va="center",
            color="#333333" if is_pale else "white",
            size="small",
            weight="bold",
            bbox=ground,
        )


def _is_pale(lane: TimelineLane, what: str) -> bool:
    """Tell whether a span says how long a trainer computed, and not exactly when."""
    return lane.by_reports or what == PARTS_TOGETHER
