"""Processor time of a schedule, by strategy and number of layers, and of what a member notes of each step to make one (paper
002, Tables I and II, Fig. 12)."""

import random
import time

from rich.table import Table

from benchmarks.groups.networks import NETWORKS
from benchmarks.support.report import Spread
from edge_agent.adaptation.rescheduling import SegmentTimes
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH
from edge_agent.planning.schedules import STRATEGIES, Layers
from shared.events import Events
from shared.events.worker import Computed

DEPTHS = (152, 1000)
GOALS = {152: 0.001, 1000: 0.010}
"""Seconds of a schedule of both directions."""
MESSAGE_SECONDS = 0.014
TIMED = (DYNACOMM, FLOW, IBATCH)


def drawn_layers(draw: random.Random, count: int) -> Layers:
    """Draw layers of a megabyte on average that compute about as long as they travel; few are large, as in networks."""
    sizes = [int(4e6 * draw.random() ** 3) for _ in range(count)]
    carried = tuple(size * 8e-9 for size in sizes)
    computing = [draw.uniform(0.0, 0.016) for _ in range(count)]
    return Layers(
        "drawn",
        MESSAGE_SECONDS,
        tuple(map(str, range(count))),
        tuple(sizes),
        carried,
        tuple(seconds / 3 for seconds in computing),
        tuple(seconds * 2 / 3 for seconds in computing),
        carried,
    )


def scheduling_seconds(repeats: int) -> dict[tuple[str, int], Spread]:
    """Time schedules, each of layers of its own."""
    draw, found = random.Random(0), {}
    for depth in DEPTHS:
        cases = [drawn_layers(draw, depth) for _ in range(repeats)]
        for name in TIMED:
            taken = []
            for layers in cases:
                started = time.process_time()
                STRATEGIES[name](layers)
                taken.append(time.process_time() - started)
            found[name, depth] = Spread.of(taken)
    return found


def scheduling_table(found: dict[tuple[str, int], Spread]) -> Table:
    """The times beside the goals of ours."""
    table = Table(
        "strategy",
        "layers",
        "ms, median (quartiles)",
        "goal",
        "",
        title="processor time of a schedule",
        title_justify="left",
    )
    for (name, depth), spread in found.items():
        ours = name in (DYNACOMM, FLOW)
        late = ours and spread.median > GOALS[depth]
        goal = f"{1e3 * GOALS[depth]:g}" if ours else ""
        table.add_row(name, str(depth), spread.show(1e3, 2), goal, "MISSED" if late else "")
    return table


PROFILING_GOAL = 0.0133
"""Part of a step that profiling may take (paper 002, Table II)."""
PROFILED_BATCH = 32
PROFILED_STEPS = 100


def profiling_shares() -> dict[str, float]:
    """Return by network the part of a step's computing that a member's notes of its segments take.

    A member notes the seconds of every segment, here as many as with a message for each layer.
    """
    found = {}
    for network in NETWORKS:
        layers = network.layers(PROFILED_BATCH, 1e9, MESSAGE_SECONDS)
        seconds = sum(layers.forward_seconds) + sum(layers.backward_seconds)
        of_step = [Computed(0, segment, "forward", 0.0, 1.0) for segment in range(2 * len(layers))]
        emits = {}
        for is_noted in (False, True):
            events = Events()
            if is_noted:
                SegmentTimes(events)
            started = time.process_time()
            for _ in range(PROFILED_STEPS):
                for event in of_step:
                    events.emit(event)
            emits[is_noted] = (time.process_time() - started) / PROFILED_STEPS
        found[network.name] = (emits[True] - emits[False]) / seconds
    return found


def profiling_table(found: dict[str, float]) -> Table:
    """The shares beside the goal."""
    title = f"what a member notes to profile its layers, of a step's computing at batch {PROFILED_BATCH}"
    table = Table("network", "%", "goal", "", title=title, title_justify="left")
    for name, share in found.items():
        missed = "MISSED" if share > PROFILING_GOAL else ""
        table.add_row(name, f"{100 * share:.4f}", f"{100 * PROFILING_GOAL:g}", missed)
    return table
