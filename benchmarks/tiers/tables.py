"""Tables of placements of three tiers as measured: their steps, the errors of predictions, and what the best gains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from benchmarks.tiers.tried import FEWER, ONE_BEHIND, Tried
from edge_agent.planner_names import BEST

GAIN_PREDICTED, BEST_GOAL, OVERLAP_GOAL = 0.87, 1.05, 1.1


@dataclass(frozen=True)
class Kind:
    """Measurements of one kind of blocks, and what they are held to."""

    blocks: str
    """Work of its blocks, as a verb."""
    settings: Mapping[str, str]
    """Settings in words, by name."""
    median: float
    """Median error of a prediction."""
    worst: float
    gain: float
    """Seconds of the best over those of the best of fewer workers, where the simulator has `GAIN_PREDICTED` of them at most."""


def tables(tried: Sequence[Tried], kind: Kind) -> Iterator[Table]:
    """Yield the tables of what was measured."""
    yield steps_table(tried, kind)
    yield errors_table(tried, kind)
    if settled := [one for one in tried if one.setting in kind.settings]:
        yield gains_table(settled, kind)
    if exchanged := [one for one in tried if one.setting not in kind.settings]:
        yield overlap_table(exchanged)


def steps_table(tried: Sequence[Tried], kind: Kind) -> Table:
    """Tabulate each step as measured, as simulated and in phases."""
    table = Table(
        *("setting", "placement", "step, ms", "simulated", "error", "Eq. 12", "error"),
        title=f"blocks {kind.blocks}; steps of placements of three tiers",
    )
    for one in tried:
        found = one.found
        phased = ("", "") if found.eq12 is None else (f"{found.eq12 * 1e3:.0f}", f"{found.eq12_error:+.1%}")
        table.add_row(
            one.setting,
            one.name,
            found.seconds.show(1e3, 0),
            f"{found.predicted * 1e3:.0f}",
            f"{found.error:+.1%}",
            *phased,
        )
    return table


def errors_table(tried: Sequence[Tried], kind: Kind) -> Table:
    """Tabulate the errors of all cases together."""
    simulated = [abs(one.found.error) for one in tried]
    phased = [abs(error) for one in tried if (error := one.found.eq12_error) is not None]
    table = Table("", "cases", "median error", "worst error", "", title=f"goal: {kind.median:.0%} and {kind.worst:.0%}")
    kept = median(simulated) <= kind.median and max(simulated) <= kind.worst
    for name, errors, verdict in (("simulator", simulated, "" if kept else "MISSED"), ("Eq. 12", phased, "")):
        table.add_row(name, str(len(errors)), f"{median(errors):.1%}", f"{max(errors):.1%}", verdict)
    return table


def gains_table(tried: Sequence[Tried], kind: Kind) -> Table:
    """Tabulate the best placement beside that of fewer workers, and beside the best that was measured, where K = 0."""
    table = Table(
        *("setting", "best / fewer, simulated", "measured", "best / best measured", ""),
        title=(
            f"goals: {kind.gain:g} measured where {GAIN_PREDICTED:g} is simulated, and elsewhere {BEST_GOAL:g} of the best "
            "that was measured"
        ),
    )
    for setting in dict.fromkeys(one.setting for one in tried):
        found = {one.name: one.found for one in tried if one.setting == setting and one.name != ONE_BEHIND}
        best = found[BEST]
        fewer = found.get(FEWER, best)
        predicted, measured = best.predicted / fewer.predicted, best.seconds.median / fewer.seconds.median
        beside = best.seconds.median / min(each.seconds.median for each in found.values())
        kept = measured <= kind.gain if predicted <= GAIN_PREDICTED else beside <= BEST_GOAL
        table.add_row(
            kind.settings[setting], f"{predicted:.2f}", f"{measured:.2f}", f"{beside:.2f}", "" if kept else "MISSED"
        )
    return table


def overlap_table(tried: Sequence[Tried]) -> Table:
    """Tabulate the steps in which weights are exchanged for as long as workers compute."""
    table = Table(
        *("exchange as long as computing", "step, ms", "simulated", "measured / simulated", ""),
        title=f"two workers share all blocks, K = 0; goal: {OVERLAP_GOAL:g}",
    )
    for one in tried:
        ratio = one.found.seconds.median / one.found.predicted
        table.add_row(
            one.name,
            one.found.seconds.show(1e3, 0),
            f"{one.found.predicted * 1e3:.0f}",
            f"{ratio:.2f}",
            "" if ratio <= OVERLAP_GOAL else "MISSED",
        )
    return table
