"""Links that `edge-agent simulate` runs over, and the presentation of its results, also as a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from edge_agent.commands.plans.printing import layout_fields
from edge_agent.observability.plots import NO_MATPLOTLIB
from edge_agent.planning import FLOAT32_BITS, PROBE_SECONDS, Layout, LinkTrace, Run, Trace, load_trace, parse_rate
from shared.errors import PlanError

WINDOW_SECONDS = 1.0
"""Over which rates are averaged for the eye."""


def print_results(runs: Mapping[str, Run], names: Sequence[str], *, as_json: bool) -> None:
    """Print the runs of planners, as JSON or as a table. names: of the profile's workers."""
    fields = [run_fields(planner, run, names) for planner, run in runs.items()]
    typer.echo(json.dumps(fields) if as_json else describe_runs(runs))


def open_links(
    traces: list[Path],
    downlink_traces: list[Path] | None,
    downlink: str | None,
    trace_run: int | None,
    round_trips: list[float],
) -> list[LinkTrace]:
    """Open both directions of each link from the given options. round_trips: in seconds, one a link. Raises PlanError."""
    if downlink_traces and downlink is not None:
        raise PlanError("the downlink is given twice; give either --downlink-trace or --downlink")
    for option, given in (("--trace", traces), ("--downlink-trace", downlink_traces or traces)):
        if len(given) != len(round_trips):
            raise PlanError(
                f"{option} is given {len(given)} times; there must be one for each of the links, {len(round_trips)}"
            )
    ups = [load_trace(path, trace_run) for path in traces]
    if downlink_traces:
        downs = [load_trace(path) for path in downlink_traces]
    elif downlink is not None:
        downs = [Trace.constant(parse_rate(downlink, "--downlink"))] * len(ups)
    else:
        downs = ups
    return list(map(LinkTrace, ups, downs, round_trips))


def run_fields(planner: str, run: Run, names: Sequence[str]) -> dict[str, object]:
    """A simulated run as its JSON object; times that never end are null."""
    return {
        "planner": planner,
        "seconds_per_100_steps": run.seconds_per_100_steps if run.seconds_per_100_steps < float("inf") else None,
        "start": layout_fields(run.start, names),
        "switches": [
            {"seconds": switch.seconds, **layout_fields(switch.layout, names), "paused_seconds": switch.paused_seconds}
            for switch in run.switches
        ],
    }


def describe_runs(runs: Mapping[str, Run]) -> str:
    """A table: planner, seconds per 100 steps, how it began and how often it changed."""
    lines = [f"{'planner':<12} {'s/100 steps':>12}  {'start':<34} changes"]
    for planner, run in runs.items():
        lines.append(f"{planner:<12} {run.seconds_per_100_steps:>12.2f}  {run.start!s:<34} {len(run.switches)}")
    return "\n".join(lines)


def plot_run(planner: str, run: Run, link: LinkTrace, seconds: float, path: Path) -> None:
    """Write the picture of a planner's run to `path`, a PNG: rates, cut and bits over time, as in paper 000, Fig. 18.

    Raises PlanError where matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise PlanError(f"--png {NO_MATPLOTLIB}") from error
    end = PROBE_SECONDS + seconds
    moments = [PROBE_SECONDS + i * WINDOW_SECONDS for i in range(max(1, int(seconds / WINDOW_SECONDS)))]
    figure = Figure(figsize=(9, 6), layout="constrained")
    rates_axes, cut_axes, bits_axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    for name, trace in (("uplink", link.uplink), ("downlink", link.downlink)):
        rates = [trace.mean_between(moment, moment + WINDOW_SECONDS) / 1e6 for moment in moments]
        rates_axes.plot(moments, rates, label=name, linewidth=1.2)
    rates_axes.set_ylabel("Mbit/s")
    rates_axes.set_ylim(bottom=0)
    rates_axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # beside the lines, never on them
    rates_axes.set_title(f"{planner}: {run.seconds_per_100_steps:.1f} s per 100 steps")
    times: list[float] = [PROBE_SECONDS]
    layouts: list[Layout] = [run.start]
    for switch in run.switches:
        times.append(switch.seconds)
        layouts.append(switch.layout)
    times.append(max(end, times[-1]))
    layouts.append(layouts[-1])
    cut_axes.step(times, [layout.tiles[0].stop for layout in layouts], where="post")
    cut_axes.set_ylabel("cut, in blocks")
    bits_axes.step(times, [(*layout.bits, FLOAT32_BITS)[0] for layout in layouts], where="post")
    bits_axes.set_ylabel("bits a value")
    bits_axes.set_xlabel("seconds")
    bits_axes.set_xlim(PROBE_SECONDS, end)
    for axes in (cut_axes, bits_axes):
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        axes.margins(y=0.15)
    for axes in (rates_axes, cut_axes, bits_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise PlanError(f"{path}: the plot cannot be written: {error.strerror}") from error
