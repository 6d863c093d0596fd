"""Processor time of a schedule, by strategy and number of layers (paper 002, Table I and Fig. 12)."""

import random
import time

from rich.table import Table

from benchmarks.support.report import Spread
from shared.planner_names import DYNACOMM, FLOW, IBATCH
from shared.planning.schedules import STRATEGIES, Layers

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
