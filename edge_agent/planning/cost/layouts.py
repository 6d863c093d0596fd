"""The loads of layouts: of stacked ones at once, from the tables of the profile; of others from the tasks of a step.

Of a stacked layout each worker runs the next blocks on the whole batch; two workers on one cut are such, too. Where workers
share blocks, or links a segment, the event simulator says what a step takes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from edge_agent.planning.cost.conditions import Conditions, Direction
from edge_agent.planning.cost.loads import Loads, Paths, joined
from edge_agent.planning.cost.programs import loads_of_step
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Floats, Ints
from edge_agent.planning.operation_costs import BlockCosts
from edge_agent.planning.placement_simulator import steady_step_seconds
from edge_agent.planning.profile import NO_MESSAGE, Profile, WorkerProfile
from edge_agent.planning.profile_operations import coded, facts_of, layout_tasks, placement_tasks
from edge_agent.planning.rates import Rates
from shared.placement import Backward, Cargo, Forward, Link, Placement, Route, Update, crossings, stages


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


def stacked_loads(
    profile: Profile, places: Sequence[int], cuts: Sequence[Ints], bits: Sequence[Ints], staleness: Ints
) -> Loads:
    """Return the loads of n layouts of the same workers.

    places: of the workers in the profile. cuts: rising, the blocks before each worker but the first, each of shape
    (n,). Only the last may be L, and leaves its worker without blocks. bits: of the features at each cut. staleness: K,
    shape (n,).

    A worker's other work depends on the bytes that it sends and receives.
    """
    blocks, serial = len(profile), staleness == 0
    first = np.zeros_like(staleness)
    ends = [first, *cuts, np.full_like(staleness, blocks)]
    work = {
        place: _table_seconds(profile.workers[place], start, stop, serial)
        for place, (start, stop) in zip(places, pairwise(ends), strict=True)
    }
    carried: dict[Direction, Floats] = {}
    halves: dict[Direction, Floats] = {}
    used: dict[int, list[Bools]] = {place: [] for place in places}
    for (near, far), cut, width in zip(pairwise(places), cuts, bits, strict=True):
        crosses = cut < blocks
        work[near] = work[near] + np.where(crosses, encoding_seconds(profile, cut, width), 0.0)
        feature_bits, gradient_bits = crossing_bits(profile, cut, width)
        carried[near, far] = np.where(crosses, feature_bits, 0.0)
        carried[far, near] = np.where(crosses, gradient_bits, 0.0)
        halves[min(near, far), max(near, far)] = np.where(crosses, 2.0, 0.0)
        for place in (near, far):
            used[place].append(crosses)
    host: dict[int, Floats] = {}
    waited = np.zeros(len(staleness))
    for place in places:
        message = profile.workers[place].message
        if message == NO_MESSAGE:
            continue
        links = np.sum(used[place], axis=0)
        moved = np.sum([each for direction, each in carried.items() if place in direction], axis=0)
        overhead = np.where(links > 0, message.seconds_per_byte / 8 * moved + message.seconds * links, 0.0)
        awaited = np.where(serial, message.waited_seconds * links, overhead)
        host[place] = np.maximum(overhead, awaited)
        waited = waited + awaited
    return Loads(staleness, work, host, carried, Paths(None, work, waited, carried, halves))


def encoding_seconds(profile: Profile, cuts: Ints, bits: Ints) -> Floats:
    """Return the seconds in which a feature is encoded at each cut; 0 for 32 bits, NaN if it was not measured."""
    return np.where(bits < FLOAT32_BITS, profile.encode_seconds[cuts], 0.0)


def crossing_bits(profile: Profile, cuts: Ints, bits: Ints) -> tuple[Floats, Floats]:
    """Return the bits of a feature and of its error gradient at each cut, NaN if they are unknown. bits: of a feature's number.

    Error gradients are as the profile has them (paper 000, 4.4).
    """
    feature_bytes, gradient_bytes = profile.sizes
    return feature_bytes[cuts] * 8 * bits / FLOAT32_BITS, gradient_bytes[cuts] * 8


def _table_seconds(worker: WorkerProfile, first: Ints, stop: Ints, serial: Bools) -> Floats:
    """Return the seconds of the blocks [first, stop); 0 if there are none."""
    seconds = worker.replayed[first, stop]
    if serial.any():
        seconds = np.where(serial, worker.at_once[first, stop], seconds)
    return np.where(first < stop, seconds, 0.0)


def simulated_seconds(profile: Profile, placement: Placement, at: Conditions) -> float:
    """Return the seconds of a step of any placement with a full pipeline, by a profile that has costs by samples.

    PlanError for a codec that the profile lacks.
    """
    factors = dict(zip(profile.names, at.factors.tolist(), strict=True))
    return steady_step_seconds(placement_tasks(profile, placement, _rates_at(profile, at), factors))


def _rates_at(profile: Profile, at: Conditions) -> Mapping[Link, Rates]:
    places = {name: place for place, name in enumerate(profile.names)}
    return {Link(near, far): at.link(places[near], places[far]) for near, far in combinations(profile.names, 2)}


def simulated_loads(profile: Profile, layout: Layout, at: Conditions) -> Loads:
    """Return the loads of a layout's step: under these conditions, its seconds are the simulator's.

    PlanError for a width of which the profile has no codec.
    """
    placement, costs = coded(profile, layout), profile.by_samples
    assert costs is not None
    # Devices as they were measured: factors come from the conditions.
    step = placement_tasks(profile, placement, _rates_at(profile, at))
    loads = loads_of_step(step, profile.names, at)
    work = computing_seconds(profile, layout)
    for one in crossings(placement, facts_of(profile)):
        codec = placement.codecs.get(Route(one.sender, one.receiver, one.cargo))
        if one.cargo is Cargo.FEATURE and codec is not None:
            plain_bytes = costs.feature_bytes[one.index] * one.rows.count
            work[profile.names.index(one.sender)] += costs.codecs[codec].encode.at(plain_bytes)
    loads = replace(
        loads,
        work={place: np.array([work[place]]) for place in loads.work},
        host={place: busy - work[place] for place, busy in loads.work.items()},
    )
    return replace(loads, stretch=simulated_seconds(profile, placement, at) / loads.seconds(at))
