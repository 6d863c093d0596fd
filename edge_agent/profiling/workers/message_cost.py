"""The cost of a message on each worker: found by what real steps of several divisions take.

Blocks and links take less alone than in a step, where every message wakes a process, and is packed, checked and read. Of a
worker with a share of a core all of that takes the time of its blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from shared.placement import Placement
from shared.planning import Profile, Simulated, conditions_of
from shared.planning.measurements import Floats
from shared.planning.operation_costs import Linear

_ROUNDS = 4
"""Times that the simulator's slopes are taken, at most."""
_SLOPE_PART = 0.002
"""Part of a step by which a cost is changed to see how much longer a step takes."""
_FRACTIONS = (1.0, 0.5, 0.25)
"""Parts of the way to other costs that are tried, because slopes hold only near where they were taken."""
_BETTER = 0.9
"""Part of an error that has to be left for the search to go on."""
_NOISE = 0.03
"""Part of a step by which a measured one may be wrong. It is as unlikely that a worker has twice the cost of all together."""


def message_costs(profile: Profile, steps: Sequence[tuple[Placement, float]]) -> dict[str, Linear]:
    """Return the cost of a message by worker, which it has for each that it sends and each that it receives.

    steps: placements, and the measured seconds of a step of each. The costs, none below 0, are those with which the simulator
    errs least, as relative squares: first one for all workers, and then one for each that is not far from it without need.
    """
    costs = profile.by_samples
    assert costs is not None
    workers = len(profile.names)
    measured = np.array([seconds for _, seconds in steps])
    sizes = [*costs.weight_bytes, *(size * profile.batch_size for size in costs.feature_bytes)]
    unit_bytes = max(1.0, sum(sizes) / len(sizes))  # both parts of a cost are seconds of a message

    def named(each: Floats) -> dict[str, Linear]:
        return {
            name: Linear(float(each[place]), float(each[workers + place]) / unit_bytes)
            for place, name in enumerate(profile.names)
        }

    def error(each: Floats) -> Floats:
        changed = replace(profile, by_samples=replace(costs, messages=named(each)))
        simulator = Simulated(changed, conditions_of(changed))
        parts: Floats = np.array([simulator.seconds(placement) for placement, _ in steps]) / measured
        return parts - 1.0

    def error_and_distance(each: Floats) -> Floats:
        return np.concatenate([error(each), _NOISE * (each - alike) * workers / alike.sum()])

    if not steps:
        return named(np.zeros(2 * workers))
    change = _SLOPE_PART * float(measured.min())
    alike = np.repeat(_fitted(lambda both: error(np.repeat(both, workers)), np.zeros(2), change), workers)
    if not alike.any():
        return named(alike)
    return named(_fitted(error_and_distance, alike, change))


def with_messages(document: Mapping[str, object], costs: Mapping[str, Linear]) -> dict[str, object]:
    """Return a profile's JSON object with the cost of a message of each worker."""
    workers = document["workers"]
    assert isinstance(workers, list)
    return {**document, "workers": [{**worker, "message": [*costs[worker["name"]]]} for worker in workers]}


def _fitted(error: Callable[[Floats], Floats], begin: Floats, change: float) -> Floats:
    """Return the numbers of 0 or more with the least squares of these errors, as Gauss and Newton do. change: of a number,
    to see what an error does."""
    found, now = begin, error(begin)
    for _ in range(_ROUNDS):
        slopes = np.stack([(error(found + change * one) - now) / change for one in np.eye(len(found))], axis=1)
        wanted, before = _least_squares(slopes, slopes @ found - now), now @ now
        for fraction in _FRACTIONS:
            tried = found + fraction * (wanted - found)
            then = error(tried)
            if then @ then < now @ now:
                found, now = tried, then
                break
        if now @ now > _BETTER * before:
            break
    return found


def _least_squares(slopes: Floats, wanted: Floats) -> Floats:
    """Return the x of 0 or more of the least squares of slopes @ x - wanted, by trying which of a few are 0."""
    best, least = np.zeros(slopes.shape[1]), float(wanted @ wanted)
    for chosen in product((False, True), repeat=slopes.shape[1]):
        some = np.flatnonzero(chosen)
        x = np.linalg.lstsq(slopes[:, some], wanted, rcond=1e-6)[0]
        missed = slopes[:, some] @ x - wanted
        if (x >= 0.0).all() and missed @ missed < least * (1.0 - 1e-9):
            best, least = np.zeros(slopes.shape[1]), float(missed @ missed)
            best[some] = x
    return best
