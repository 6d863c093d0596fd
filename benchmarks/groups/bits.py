"""Fewer bits both ways over shaped links, in real runs: a step by codecs beside an exact one."""

from collections.abc import Callable

from rich.table import Table

from benchmarks.groups.links import MEMBERS, Goal, Mix, goals_table
from benchmarks.groups.measured import MeasuredGroup, coded_name, measure_group, measured_table
from edge_agent.planner_names import FLOW

MIX = Mix("transfer is four times compute", 100, 4.0)
CODECS = ("raw", "uniform16", "uniform8")
FASTER, FASTER_GOAL = "uniform8", 3.0
"""Times that a step in 8 bits is to be faster than an exact one, at four times as long to transfer as to compute."""


def bits_goal(group: MeasuredGroup) -> Goal:
    """Hold the step in 8 bits against the exact one."""
    times = group.medians[FLOW] / group.medians[coded_name(FLOW, FASTER)]
    return Goal(f"exact over {FASTER} both ways", times, f"{FASTER_GOAL} or more", times >= FASTER_GOAL)


def bits(rounds: int, show: Callable[[Table], None]) -> dict[str, object]:
    """Measure exact steps and those by codecs in turn, so many times."""
    group = measure_group(MIX.layers, MEMBERS, (FLOW,), (), rounds, codecs=CODECS)
    show(measured_table(group, MIX.name))
    goals = {MIX.name: [bits_goal(group)]}
    show(goals_table(goals))
    return {"group": group, "goals": goals}
