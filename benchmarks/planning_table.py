"""The figures of planning as Markdown, from what its benchmarks stored.

    python -m benchmarks.planning_table --fig17 F.json --adaptation A.json --round-trips R.json --flapping L.json
        [--into docs/results.md]

Each file is what the benchmark of that name wrote with --json. Without --into they are printed; with it they replace what
stands between two marks in that file.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import replaced

BEGIN, END = "<!-- planning: made by benchmarks.planning_table -->", "<!-- end of planning -->"

Rows = Sequence[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, draw, and print or write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning_table", description="Planning as Markdown.")
    for name in ("fig17", "adaptation", "round-trips", "flapping"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="what the benchmark stored")
    parser.add_argument("--into", type=Path, help="file with the two marks; without it the tables are printed")
    chosen = parser.parse_args(arguments)
    text = "\n\n".join(
        (
            fig17(json.loads(chosen.fig17.read_text())["rows"]),
            adaptation(json.loads(chosen.adaptation.read_text())["rows"]),
            round_trips(json.loads(chosen.round_trips.read_text())),
            flapping(json.loads(chosen.flapping.read_text())["outcomes"]),
        )
    )
    if chosen.into is None:
        print(text)
    else:
        chosen.into.write_text(replaced(chosen.into.read_text(), text, str(chosen.into), BEGIN, END))


def fig17(rows: Rows) -> str:
    """Seconds per 100 batches of our planner and the paper's baselines."""
    lines = []
    for row in rows:
        seconds = row["seconds_per_100_steps"]
        ours = seconds["greedy"]
        less = (f"{1 - ours / seconds[name]:.1%}" for name in ("jointdnn", "edge-only"))
        times = (f"{seconds[name]:.1f}" for name in ("greedy", "jointdnn", "edge-only"))
        lines.append((row["model"], row["device"], row["network"], *times, *less))
    heads = ("model", "device", "network", "ours", "JointDNN", "edge-only", "less than JointDNN", "less than edge-only")
    return "**Seconds per 100 batches of 32**\n\n" + _table(heads, lines)


def adaptation(rows: Rows) -> str:
    """The engine against the best fixed deployment and the lower bound, trace by trace in short."""
    lines = []
    for profile in dict.fromkeys(row["profile"] for row in rows):
        own = [row for row in rows if row["profile"] == profile]
        against, jointdnn, edge_only, lower_bound = (
            [row["seconds"]["greedy"] / row["seconds"][planner] for row in own]
            for planner in ("best-fixed", "jointdnn", "edge-only", "lower-bound")
        )
        gains = [row["foresight_gain"] for row in own]
        figures = (
            sum(ratio < 0.99 for ratio in against),
            sum(ratio <= 1.03 for ratio in against),
            sum(ratio <= 1 / 0.9 for ratio in lower_bound),
            sum(ratio < 1 for ratio in jointdnn),
            sum(ratio < 1 for ratio in edge_only),
            sum(gain > 0.03 for gain in gains),
        )
        ratios = (statistics.median(against), min(against), max(against))
        lines.append((profile, str(len(own)), *(f"{ratio:.3f}" for ratio in ratios), *map(str, figures)))
    heads = (
        "profile",
        "traces",
        "time over the best fixed: median",
        "least",
        "most",
        "1 % faster on",
        "within 3 % on",
        "lower bound within 10 % on",
        "faster than JointDNN on",
        "than edge-only on",
        "foresight worth over 3 % on",
    )
    return "**Adaptation, 30 simulated minutes a trace**\n\n" + _table(heads, lines)


def round_trips(found: dict[str, Any]) -> str:
    """The engine against the best fixed deployment over ways of different lengths."""
    lines = []
    for row in found["rows"]:
        engine, surprised, fixed = (row[f"{name}_seconds"] for name in ("planned", "surprised", "best_fixed"))
        times = (f"{seconds:.2f}" for seconds in (fixed, engine, surprised))
        where = (row["device"], row["link"], f"{row['round_trip_seconds'] * 1e3:.0f}", row["best_fixed"])
        lines.append((*where, *times, f"{max(engine, surprised) / fixed:.3f}", f"{row['least_seconds']:.2f}"))
    heads = (
        "device",
        "link",
        "round trip, ms",
        "best fixed",
        "its time",
        "engine",
        "engine, not told of the round trip",
        "the worse over the best fixed",
        "lower bound",
    )
    title = f"**Round trips: seconds per 100 steps, {found['minutes']:g} simulated minutes a run**"
    return f"{title}\n\n{_table(heads, lines)}"


def flapping(outcomes: Rows) -> str:
    """How much slower the engine ever got than where it began."""
    ratios = [outcome["ratio"] for outcome in outcomes]
    return (
        f"**Flapping**: {len(ratios)} random profiles on square waves of 1 s to 5 min: time over that of the starting "
        f"deployment {statistics.fmean(ratios):.3f} on average, worst {max(ratios):.3f}, more than 3 % slower in "
        f"{sum(ratio > 1.03 for ratio in ratios)}."
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
