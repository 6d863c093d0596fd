"""The most steps that any run over a link can do, known beforehand: what every planner is held against.

A linear program over how many steps each deployment does, whatever their order. Changes cost nothing in it, work may wait
between the phases for as long as one likes, and the fewest bits and the most K are free to mix. So no run can do more, and
most can do less.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from benchmarks.rivals.pair import over
from edge_agent.planning import PROBE_SECONDS, LinkTrace, Profile, Rates, SearchSpace, Trace
from edge_agent.planning.families.pair import Pairs, listed_pairs
from edge_agent.planning.measurements import FLOAT32_BITS, Floats
from shared.errors import PlanError

ROUNDING = 1e-6
"""Part of each limit that may be nothing but rounding: ten times what the solver takes for equal."""


def least_seconds_per_100_steps(profile: Profile, link: LinkTrace, space: SearchSpace, seconds: float) -> float:
    """Less time than any run of a comparison (`edge_agent.planning.compare`) can take, however well it knows the link."""
    return 100.0 * seconds / most_steps(profile, link, seconds, space, begin=PROBE_SECONDS)


def most_steps(profile: Profile, link: LinkTrace, seconds: float, space: SearchSpace, begin: float = 0.0) -> float:
    """The most steps of any run that lasts `seconds` from the moment `begin` of the link, whatever changes when.

    Deployments: all of the space, whatever its cut, and what JointDNN chooses from. PlanError when a step takes no time.
    """
    widths = tuple({*space.bits, FLOAT32_BITS})
    # All K above 0 cost a step the same, so the largest stands for them.
    largest = space.staleness_range(profile)[-1]
    found = listed_pairs(profile, replace(space, bits=widths, cuts=None), sorted({0, largest}))
    limits, costs = _limits(found, largest + 1, link, seconds, begin)
    n = len(found)
    solved = linprog(
        -np.concatenate([np.ones(n), np.zeros(n)]), A_ub=costs, b_ub=limits * (1.0 + ROUNDING), method="highs"
    )
    if not solved.success:
        raise PlanError(f"the most steps of a run cannot be found: {solved.message}")
    return float(-solved.fun) + 1.0  # a run counts the step under way in part


def _limits(found: Pairs, window: int, link: LinkTrace, seconds: float, begin: float) -> tuple[Floats, Floats]:
    """Limits, shape (m,), and what one unit of each variable takes of them, shape (m, 2 n).

    The first n variables are steps of each deployment, the others those of them that a step with K = 0 follows.
    """
    best = Rates(max(link.uplink.bits_per_second), max(link.downlink.bits_per_second), link.round_trip_seconds)
    at, is_serial = over(found.profile, best), found.staleness == 0
    flight_seconds, busy = found.loads.at(at).total, found.loads.worker_seconds(at)
    # After its work on a batch, until that is settled, as early as the best rates allow.
    idle_seconds = np.maximum(0.0, flight_seconds - busy[0])
    after_seconds = float(np.maximum(0.0, busy[0] - flight_seconds).max())
    none, each = np.zeros(len(found)), np.eye(len(found))
    rows = [
        # The edge serves batches one by one, and before one with K = 0 it is idle until the one before is settled. The last
        # of all may be settled before the edge is done with it.
        (seconds + after_seconds, busy[0], idle_seconds),
        (seconds, busy[1], none),
        (_carried_bits(link.uplink, begin, seconds), found.loads.bits[0, 1], none),
        (_carried_bits(link.downlink, begin, seconds), found.loads.bits[1, 0], none),
        # With K = 0 one batch is in flight, and in all never more than the largest K and one.
        (seconds, np.where(is_serial, flight_seconds, 0.0), none),
        (window * seconds, flight_seconds, none),
        # Every batch with K = 0 but the first follows some batch.
        (1.0, is_serial.astype(np.float64), none - 1.0),
    ]
    follows = np.hstack([-each, each])  # no more are followed than there are
    limits = np.concatenate([[limit for limit, _, _ in rows], none])
    costs = np.vstack([np.array([np.concatenate(taken) for _, *taken in rows]), follows])
    # As shares of each limit: beside bits of a slow link, seconds would be less than what the solver takes for equal.
    units = np.where(limits > 0.0, limits, np.maximum(np.abs(costs).max(axis=1), np.finfo(np.float64).tiny))
    return limits / units, costs / units[:, np.newaxis]


def _carried_bits(trace: Trace, begin: float, seconds: float) -> float:
    return trace.bits_until(begin + seconds) - trace.bits_until(begin)
