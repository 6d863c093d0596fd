"""Explanations: the plans that come after the best one, and what a step of each waits for."""

import math
from dataclasses import dataclass, replace

from edge_agent.planning.cost import Conditions, Direction
from edge_agent.planning.families.loads_at import loads_at
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.registry import listed, neighbours
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.plan import Plan

ROUNDING = 1e-9
WAITING = 1.01
"""Ratio of the seconds of a step to those of its busiest part above which its parts wait for each other."""


@dataclass(frozen=True)
class Parts:
    """The seconds for which a step keeps its workers and links busy."""

    workers: dict[str, float]
    links: dict[tuple[str, str], tuple[float, float]]
    """By two workers, the one nearer to the samples first: up, and down."""


def parts_of(question: Question, layout: Layout, at: Conditions) -> Parts:
    """Return the parts of a step, without links that carry nothing."""
    loads, names = loads_at(question, [layout], at), question.profile.names
    busy, carried = loads.worker_seconds(at), loads.direction_seconds(at)

    def seconds(direction: Direction) -> float:
        return float(carried[direction][0]) if direction in carried else 0.0

    links = {
        (names[near], names[far]): (seconds((near, far)), seconds((far, near)))
        for near in range(len(names))
        for far in range(near + 1, len(names))
    }
    return Parts(
        {name: float(busy[names.index(name)][0]) for name in layout.workers if names.index(name) in busy},
        {link: both for link, both in links.items() if any(both)},
    )


def ranked(question: Question, at: Conditions, plan: Plan, count: int) -> list[Plan]:
    """Return a plan, and after it the best others, the fastest first, each with the reason for its seconds.

    The others are all that may be chosen, or where these are too many to be listed, the plan's neighbours: those that differ in
    one cut, width, share or worker, or in K.
    """
    known = listed(question)
    layouts = list(neighbours(question, plan.layout, at)) if known is None else known[0]
    others = [layout for layout in dict.fromkeys(layouts) if layout != plan.layout]
    seconds = loads_at(question, others, at).seconds(at).tolist() if others else []
    order = sorted((each, row) for row, each in enumerate(seconds) if each < math.inf)
    best_seconds = float(loads_at(question, [plan.layout], at).seconds(at)[0])
    after = []
    for each, row in order[:count]:
        reason = _behind(plan.layout, others[row], each / best_seconds)
        after.append(Plan(others[row], each, reason=reason or _waits(question, others[row], at)))
    return [replace(plan, reason=_waits(question, plan.layout, at)), *after]


def _behind(best: Layout, other: Layout, ratio: float) -> str:
    """Return the reason against a layout that is as fast as the best one, or faster; none against a slower one."""
    if ratio > 1.0 + ROUNDING:
        return ""
    how = f"{1.0 - ratio:.1%} faster" if ratio < 1.0 - ROUNDING else "as fast"
    fewer_bits = min(other.bits, default=FLOAT32_BITS) < min(best.bits, default=FLOAT32_BITS)
    costs = ["fewer bits"] * fewer_bits + ["a larger K"] * (other.staleness > best.staleness)
    if costs:
        return f"{how}, but with {' and '.join(costs)}"
    return f"{how}, but the planner prefers the other"


def _waits(question: Question, layout: Layout, at: Conditions) -> str:
    """Return what a step waits for: its busiest part, or a batch's way through all of them."""
    parts = parts_of(question, layout, at)
    busy = [(seconds, f"{worker} works") for worker, seconds in parts.workers.items()]
    for (near, far), (up, down) in parts.links.items():
        busy += [(up, f"{near} to {far} takes"), (down, f"{far} to {near} takes")]
    most, part = max(busy)
    loads = loads_at(question, [layout], at)
    ((_,), (total,)), (seconds,) = loads.at(at), loads.seconds(at)
    ahead = int(loads.ahead[0]) + 1
    if seconds <= WAITING * most:
        return f"{part} {most:.4g} s"
    if seconds <= WAITING * float(total) / ahead:
        among = f", and {ahead} batches share it" if ahead > 1 else ""
        return f"a batch is under way for {float(total):.4g} s{among}"
    return f"its parts wait for each other; {part} {most:.4g} s"
