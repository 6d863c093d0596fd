"""A simulated run as a picture: rates, cut and bit width over time, as in paper 000, Fig. 18.

Needs matplotlib, and only when it draws.
"""

from pathlib import Path

from edge_agent.observability.plots import NO_MATPLOTLIB
from edge_agent.planning import FLOAT32_BITS, PROBE_SECONDS, Layout, LinkTrace, Run
from shared.errors import PlanError

WINDOW_SECONDS = 1.0
"""Over which rates are averaged for the eye."""


def plot_run(planner: str, run: Run, link: LinkTrace, seconds: float, path: Path) -> None:
    """Write the picture of a planner's run to `path`, a PNG.

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
