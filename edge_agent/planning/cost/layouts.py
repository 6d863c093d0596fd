"""The loads of any layouts: of stacked ones at once, from the tables of the profile; of others from the tasks of a step."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from edge_agent.planning.cost.loads import Loads, joined
from edge_agent.planning.cost.programs import loads_of_step
from edge_agent.planning.cost.stacked import stacked_loads
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.operation_costs import BlockCosts
from edge_agent.planning.profile import Profile
from edge_agent.planning.profile_operations import layout_tasks
from edge_agent.planning.rates import Rates
from shared.placement import Backward, Forward, Link, Update, stages


def computing_seconds(profile: Profile, layout: Layout) -> dict[int, float]:
    """Return the measured seconds of computing for a step, by the place of the worker. NaN where they were not measured."""
    places = {name: place for place, name in enumerate(profile.names)}
    if (costs := profile.by_samples) is not None:
        return {places[worker]: _by_block(costs, layout, worker) for worker in layout.workers}
    seconds = dict.fromkeys((places[worker] for worker in layout.workers), 0.0)
    for tile in layout.tiles:
        table = profile.workers[places[tile.worker]].seconds_at(layout.staleness)
        seconds[places[tile.worker]] += float(table[tile.first, tile.stop])
    return seconds


def _by_block(costs: BlockCosts, layout: Layout, worker: str) -> float:
    placement, seconds = layout.placement(), 0.0
    for stage in stages(placement, worker):
        forward = costs.seconds(worker, Forward(stage))
        replay = forward if layout.staleness and stage.stop < placement.blocks else 0.0
        seconds += forward + costs.seconds(worker, Backward(stage, input_gradient=True)) + replay
    owned = (block for block in range(placement.blocks) if placement.owner(block) == worker)
    return seconds + sum(costs.seconds(worker, Update(block)) for block in owned)


def loads_of(profile: Profile, layouts: Sequence[Layout]) -> Loads:
    """Return the loads of each layout's step on workers and links, in this order. KeyError for a worker that the profile lacks.

    PlanError for one that is not stacked and was not wholly measured.
    """
    places = {name: place for place, name in enumerate(profile.names)}
    by_workers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    others: list[int] = []
    for row, layout in enumerate(layouts):
        if layout.is_stacked:
            by_workers[tuple(places[worker] for worker in layout.workers)].append(row)
        else:
            others.append(row)
    found = [_stacked(profile, workers, [layouts[row] for row in rows]) for workers, rows in by_workers.items()]
    found += [_by_tasks(profile, layouts[row]) for row in others]
    order = np.argsort([*(row for rows in by_workers.values() for row in rows), *others])
    return joined(found).take(order)


def _by_tasks(profile: Profile, layout: Layout) -> Loads:
    # Every link carries a bit a second: rates are asked for later.
    any_link = {Link(*hop): Rates(1.0, 1.0, 1.0) for hop in combinations(profile.names, 2)}
    return loads_of_step(layout_tasks(profile, layout, any_link), profile.names)


def _stacked(profile: Profile, workers: tuple[int, ...], layouts: Sequence[Layout]) -> Loads:
    cuts, bits = [layout.cuts for layout in layouts], [layout.bits for layout in layouts]
    if len(workers) == 1 and len(profile.workers) > 1:  # another one, without blocks, because it needs columns too
        workers = workers[0], (workers[0] + 1) % len(profile.workers)
        cuts, bits = [(len(profile),)] * len(layouts), [(FLOAT32_BITS,)] * len(layouts)
    staleness = np.array([layout.staleness for layout in layouts])
    return stacked_loads(
        profile,
        workers,
        [np.array(each) for each in zip(*cuts, strict=True)],
        [np.array(each) for each in zip(*bits, strict=True)],
        staleness,
    )
